# SPDX-License-Identifier: GPL-2.0-only
"""What leaves the repository: the checks of every mail, the mails, Debian packages."""
