# SPDX-License-Identifier: GPL-2.0-only
"""Alerts and the dashboard for what `kvm-eager-split metrics` writes, by Prometheus itself."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from lab.core import complete
from lab.core.locks import locked
from lab.core.paths import BUILD, LOG
from lab.series import archive
from lab.series.archive import SourceMissing
from lab.submit.modules import PARTS
from tests.rows import for_each_row
from tests.unit.fake_kvm_host import NOBODY
from tests.unit.files import called, program, write
from tests.unit.processes import started
from tests.unit.test_modules_tool import IMAGE, UPDATES, Host

ALERTS = PARTS / "prometheus/alerts.yml"
DASHBOARD = json.loads((PARTS / "prometheus/dashboard.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
# Variables of Grafana.
VALUES = {"$instance": ".*", "$vm": ".*", "$__rate_interval": "1m"}
PROGRAMS = ("promtool", "prometheus")
# KVM's statistics with their modes: it counts what root may write.
COUNTERS = ("eager_split_done", "eager_split_fault", "eager_split_nomem", "eager_split_noquota")
FAULTS = ("pf_taken", "pf_fast")
GAUGES = ("pages_4k", "pages_2m", "pages_1g", "dirty_bits")
WAIT_S = 30


def _fetched() -> Path:
    """The programs of Debian's package, which is not installed: it would start a daemon."""
    directory = BUILD / "prometheus"
    with locked(BUILD / "prometheus.lock"):
        if not directory.is_dir():
            with (
                complete.directory(directory) as fresh,
                TemporaryDirectory(dir=fresh) as temporary,
            ):
                root = Path(temporary)
                log = LOG / "prometheus.log"
                deb = archive.fetch("prometheus", archive.codename(), root, log)
                archive.unpack(deb, root)
                for name in PROGRAMS:
                    (root / "usr/bin" / name).rename(fresh / name)
    return directory


@pytest.fixture(scope="module")
def programs() -> Path:
    """The directory that has them."""
    if all(shutil.which(name, path="/usr/bin") for name in PROGRAMS):
        return Path("/usr/bin")
    try:
        return _fetched()
    except SourceMissing as error:
        warnings.warn(str(error), stacklevel=2)
        pytest.skip(str(error))


@for_each_row("words", ("check", "rules", ALERTS), ("test", "rules", "alerts_test.yml"))
def test_the_alerts(programs: Path, words: tuple[str, ...]) -> None:
    command = [str(word) for word in (programs / "promtool", *words)]
    done = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "SUCCESS" in done.stdout


@pytest.fixture
def text(tmp_path: Path) -> str:
    """What the tool says on a host with one VM, and what a node exporter adds."""
    host = Host(tmp_path)
    host.load("series")
    host.write("proc/7/cmdline", "qemu\0-name\0vm\0")
    for mode, names in ((0o644, COUNTERS + FAULTS), (0o444, GAUGES)):
        for name in names:
            host.write(f"sys/kernel/debug/kvm/7-11/{name}", "1\n").chmod(mode)
    done = host.run("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    return f'node_textfile_mtime_seconds{{file="/x/kvm.prom"}} 1\n{done.stdout}'


# The exporter's user, for whom another one stands. Who is not root stays who it is.
RUNUSER = f"""#!/bin/sh
[ "$1 $2 $3" = "-u prometheus --" ] || exit 2
shift 3
[ "$(id -u)" -ne 0 ] || exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "$@"
exec "$@"
"""


def test_the_file_for_a_node_exporter() -> None:
    """By the documented command, if the directory's owner wants root to write elsewhere."""
    page = (Path(__file__).parents[2] / "docs/operators.md").read_text()
    begin = "kvm-eager-split metrics |"
    command = begin + page.partition(f"```sh\n{begin}")[2].partition("```")[0]
    with TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        program(root / "bin/runuser", RUNUSER)
        tool = program(root / "bin/kvm-eager-split", "#!/bin/sh\nprintf 'x 1\\n# EOF\\n'\n")
        (root / "node-exporter").mkdir()
        words = ("sh", "-c", command.replace("/var/lib/prometheus", directory))
        secret = write(root / "secret", "root's own\n", 0o600)
        (root / "node-exporter/kvm.new").symlink_to(secret)
        if os.geteuid() == 0:
            os.chown(root / "node-exporter", NOBODY, NOBODY)
            assert called(root, *words).returncode
            assert secret.read_text() == "root's own\n"
        (root / "node-exporter/kvm.new").unlink()
        file = root / "node-exporter/kvm.prom"
        for _ in range(2):
            done = called(root, *words)
            # It stays if there is nothing, or half of it.
            assert file.read_text() == "x 1\n# EOF\n"
            program(tool, "#!/bin/sh\necho x 2\nexit 1\n")
        assert done.returncode == 1


def texts_of_status(status: int) -> list[str]:
    """What alerts and the dashboard say of an exit status, without line breaks."""
    alerts = re.findall(r"- alert: .*?(?=\n      - alert|\Z)", ALERTS.read_text(), re.DOTALL)
    said = [one for one in alerts if f"kvm_eager_split_status == {status}" in one]
    (mapping,) = PANELS["Status of each host"]["fieldConfig"]["defaults"]["mappings"]
    return [*said, mapping["options"][str(status)]["text"]]


def after_a_kernel_update(host: Host) -> None:
    host.write("next", "")


def with_an_old_initramfs(host: Host) -> None:
    host.write("etc/initramfs-tools/modules", "kvm_amd\n")
    os.utime(host.write(IMAGE, ""), (0, 0))
    host.write(f"{UPDATES[1:]}/kvm.eagersplit.ko.xz", "")


def with_modules_in_pieces(host: Host) -> None:
    host.write_all({"torn": "kvm\n", f"{UPDATES[1:]}/kvm.eagersplit.ko.xz": ""})


@for_each_row("change", after_a_kernel_update, with_an_old_initramfs, with_modules_in_pieces)
def test_the_alert_for_status_4_is_true_of_each_of_its_cases(
    tmp_path: Path, change: Callable[[Host], None]
) -> None:
    """Also of a host that still runs the series: nothing says that it runs another KVM."""
    host = Host(tmp_path)
    host.load("series")
    change(host)
    said = host.status(4)
    assert (said["eager_split"], said["loaded"]) == ("active", "series")
    # The alert explains the first words of what `status` says.
    kind = re.match(r"STOCK|NONE|series, but a boot", said["after_reload"])
    alert, on_dashboard = texts_of_status(4)
    assert kind and kind[0] in alert
    for text in (alert, on_dashboard):
        assert not re.search(r"does not run|kernel's own KVM is\s|^the kernel's own", text)


@contextmanager
def served(text: str) -> Iterator[int]:
    """The port of 127.0.0.1 that serves it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class Prometheus:
    def __init__(self, programs: Path, directory: Path, target: int) -> None:
        scrape = {"job_name": "kvm", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [scrape],
        }
        # JSON is YAML.
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self._log = directory / "prometheus.log"
        words = (
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            "--web.listen-address=127.0.0.1:0",
        )
        self.command = (programs / "prometheus", *words)

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Runs until the end of the block, which begins once it has read the target."""
        with (
            self._log.open("w") as log,
            started(self.command, stdout=log, stderr=log, cwd=self._log.parent) as process,
        ):
            self._wait(process)
            yield

    def _port(self) -> str:
        found = re.search(r"Listening on\" address=127\.0\.0\.1:(\d+)", self._log.read_text())
        return found[1] if found else ""

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port()}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Until it has read the target twice, and evaluated the rules."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and process.poll() is None:
            if self._port():
                read = self.get("query", query="count_over_time(kvm_eager_split_status[1m]) >= 2")
                groups = self.get("rules")["data"]["groups"] if read["data"]["result"] else []
                if groups and all(rule["health"] == "ok" for rule in groups[0]["rules"]):
                    return
            time.sleep(0.1)
        raise AssertionError(self._log.read_text())


def expressions() -> Iterator[tuple[str, str]]:
    """Title and expression of each query, without variables."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VALUES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def test_the_dashboard(programs: Path, text: str, tmp_path: Path) -> None:
    """Each of its queries finds something in what the tool writes, and so does each alert."""
    assert "$" not in "".join(expression for _, expression in expressions())
    with served(text) as port:
        prometheus = Prometheus(programs, tmp_path, port)
        with prometheus.runs():
            for title, expression in expressions():
                answer = prometheus.get("query", query=expression)
                assert answer["status"] == "success", (title, answer)
                assert answer["data"]["result"], (title, expression)
            rules = prometheus.get("rules")["data"]["groups"][0]["rules"]
            for rule in rules:
                for name in re.findall(r"\b(?:kvm|node)_\w+", rule["query"]):
                    found = prometheus.get("query", query=name)["data"]["result"]
                    assert found, (rule["name"], name)
            # The file is from 1970; nothing else is wrong with this host.
            firing = [rule["name"] for rule in rules if rule["state"] != "inactive"]
            assert firing == ["KvmEagerSplitMetricsOld"]


def test_the_dashboard_is_one_for_grafana() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places and place["x"] + place["w"] <= 24
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(PANELS)
    assert "GPL-2.0-only" in DASHBOARD["description"]
    # In the order of exit statuses.
    (mapping,) = PANELS["Status of each host"]["fieldConfig"]["defaults"]["mappings"]
    assert list(mapping["options"]) == ["0", "1", "3", "4", "6"]
