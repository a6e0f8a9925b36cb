"""Every shell block of every page is run, in the order of the page, by a real shell.

What needs a whole machine is stood in for by `page_stand_ins`; paths and ports are
those of a folder. A page that nobody has prepared fails.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import Broker, free_port, wait_until
from console_tables import Slope, storm, write_tables
from page_office import DOORS, END, PACKAGES, STAND_IN
from page_shell import ROOT, Machine

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(\S*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "python", "toml", "ini", "csv", "yaml", "conf", "text"}
"""What a block may be; what a person types is the first two."""

BY_OTHERS = {
    "docs/tutorial/first-node.md": "test_tutorial.py",
    "docs/how-to/backup.md": "test_backup.py",
    "docs/how-to/notebook.md": "test_notebook.py",
}
"""Pages whose blocks are all run by a test of their own."""

END_S = 1_782_918_000  # 2026-07-02T00:00+09:00
SLOPE = Slope("otani-1", 33.5588, 133.5312, storm(26, 60))


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Blocks of a page in its order: language and text, without indentation."""
    text = (ROOT / page).read_text("utf-8")
    return [
        (language, re.sub(rf"^{re.match(' *', body)[0]}", "", body, flags=re.MULTILINE))
        for language, body in FENCE.findall(text)
        if language in languages
    ]


def file_of(page: str, number: int, path: str) -> str:
    """Shell that writes a page's block of TOML to a file."""
    _, text = blocks(page, "toml")[number]
    return f"cat > {path} <<'END'\n{text}END\n"


@dataclass(frozen=True)
class Page:
    """How the blocks of a page are run.

    Attributes:
        before: Shell that goes before a block, by its number; what a reader has done
            by then, on this page or on those that it names.
        names: What is written otherwise, and why.
        has_tables: Whether the backend's folder has a storm in it.
    """

    before: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    has_tables: bool = False


PATIENT = """
shopt -s expand_aliases
again() { until "$@"; do sleep 1; done; }
"""
"""`again` is for what waits a few seconds for an answer: a crowd may need longer."""

GATEWAY = "docs/how-to/gateway.md"
OFFICE = (
    file_of(GATEWAY, 0, "manager.toml")
    + file_of(GATEWAY, 1, "gateway.toml")
    + "gateway-daemon manager --config manager.toml\n"
    "gateway-daemon run --config gateway.toml\n"
)
NODE = (
    file_of("docs/how-to/node.md", 0, "/etc/yamamori/node.toml")
    + "cat >> /etc/yamamori/node.toml <<'END'\n"
    '[simulation]\nstart = "2026-07-01T00:00:00+09:00"\nEND\n'
)
BACKEND = file_of("docs/how-to/backend.md", 0, "backend.toml")

# A Manager's broker beside the authority, with what was issued.
CERTIFIED = """
mkdir /etc/yamamori/tls
cp /var/lib/yamamori-ca/ca.pem /etc/yamamori/tls/
cp /var/lib/yamamori-ca/issued/{signer,kochi-0001}.* /etc/yamamori/tls/
ca broker-config manager north --out broker --port 8883 --daemons-port 8884
printf 'user %s\\ninclude_dir %s\\n' "$(id -un)" "$PWD/broker" > broker.conf
mosquitto -c broker.conf &
trap "kill $!" EXIT
"""

# Rain of 20 days with a storm on each tenth, and two landslides.
RAIN = """
awk 'BEGIN { print "time_local_end,KPAE_mm,rain_mm"; for (h = 0; h < 480; h++) {
  mm = h % 240 > 200 ? h % 7 : 0
  printf "2010-09-%02dT%02d:00:00,%d,%d\\n", 1 + h / 24, h % 24, mm, mm } }' > rain.csv
printf '2010-09-10\\n2010-09-20\\n' > landslides.csv
printf '%s\\n' 'ダウンロードした時刻：2026/06/02 12:31:33' '' ',高知,高知,高知' \\
  '年月日時,降水量(mm),降水量(mm),降水量(mm)' ',,品質情報,均質番号' \\
  '2026/6/1 23:00:00,3.5,8,1' '2026/6/1 24:00:00,0,8,1' | iconv -t cp932 > data.csv
"""

FORECAST = (
    "mkdir -p past /var/lib/yamamori/forecast\n"
    + file_of("docs/how-to/backend.md", 4, "forecast.toml")
    + "cat forecast.toml >> backend.toml\n"
    + "cat > /var/lib/yamamori/forecast/jma.csv <<'END'\n"
    + blocks("docs/how-to/backend.md", "csv")[0][1]
    + "END\ncp /var/lib/yamamori/forecast/jma.csv past/\n"
)

ONE_CORE = {"local[2]": "local[1]"}
CLUSTER = {
    "spark://10.0.0.1:7077": "local[1]",
    # `spark-class` of a stand-in looks for the class, and starts nothing.
    "python -c 'import pyspark; print(pyspark.__path__[0])'": "echo .",
}
PASSWORD = {"--role": "--password 'correct horse battery' --role"}

RUN = {
    "README.md": Page(),
    "docs/how-to/autoscale.md": Page(
        {0: OFFICE},
        {
            "//manager:": "//127.0.0.1:",
            "gateway-daemon admin": "again gateway-daemon admin",
        },
    ),
    "docs/how-to/backend.md": Page(
        {
            0: BACKEND,
            1: f"{END}\n"
            + file_of("docs/how-to/backend.md", 1, "shards.toml")
            + "cat shards.toml >> backend.toml\n",
            3: END,
            5: FORECAST,
            7: RAIN,
        },
        ONE_CORE | CLUSTER,
        has_tables=True,
    ),
    "docs/how-to/certificates.md": Page(
        {
            0: "echo secret > /etc/yamamori/ca-password\n",
            4: CERTIFIED
            + file_of("docs/how-to/certificates.md", 1, "/etc/yamamori/signer.toml"),
            5: NODE
            + file_of("docs/how-to/certificates.md", 0, "tls.toml")
            + "cat tls.toml >> /etc/yamamori/node.toml\n",
        },
        {"--owner mosquitto": '--owner "$(id -un)"', "yamamori-ca:": '"$(id -un):"'},
    ),
    "docs/how-to/commissioning.md": Page(
        {0: OFFICE + NODE},
        {
            "--live": "--live --seconds 1",
            "sudo edge-agent check": "again sudo edge-agent check",
        },
    ),
    "docs/how-to/console.md": Page(
        {
            0: BACKEND
            + file_of("docs/how-to/console.md", 0, "c.toml")
            + "cat c.toml >> backend.toml\n"
        },
        PASSWORD,
    ),
    "docs/how-to/export.md": Page({0: BACKEND}, has_tables=True),
    GATEWAY: Page({0: OFFICE.partition("gateway-daemon")[0]}),
    "docs/how-to/image.md": Page(
        {
            1: OFFICE + "openssl genpkey -algorithm ed25519 -out rollout.pem\n"
            """echo '{"version": "0.2.0", "role": "node"}' > manifest.json\n"""
            "tar -cf yamamori-node.update manifest.json\n"
        },
        {"//manager:": "//127.0.0.1:", "$(gateway-daemon": "$(again gateway-daemon"},
    ),
    "docs/how-to/node.md": Page({0: NODE}),
    "docs/how-to/systemd.md": Page(
        {
            0: NODE,
            # What `systemctl` does: it starts the agent, and stops it.
            1: "export RUNTIME_DIRECTORY=$PWD/run; mkdir run\n"
            "edge-agent run --config /etc/yamamori/node.toml\n",
            2: END,
        },
        # 1 says that there is no gateway.
        {"edge-agent status\n": "edge-agent status --run run || test $? = 1\n"},
    ),
    "docs/how-to/triage.md": Page({}, {"-h gateway": "-h 127.0.0.1 -p 1884"}),
    "docs/how-to/way-back.md": Page(),
    "docs/reference/overlay.md": Page(
        {}, {"--nodes 100000": "--nodes 2000", "--trials 30": "--trials 1"}
    ),
    "docs/reference/topology.md": Page({
        0: file_of("docs/reference/topology.md", 0, "kochi.toml")
    }),
}


@pytest.fixture(scope="module")
def office() -> Iterator[Path]:
    """Two processes that run our commands: the second one keeps a JVM."""
    with TemporaryDirectory(prefix="office-", dir="/tmp") as name:
        folder = Path(name)
        process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/page_office.py"), name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            wait_until(lambda: len([*folder.iterdir()]) == len(DOORS))
            yield folder
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@pytest.fixture
def machine(
    office: Path, tmp_path: Path, make_broker: Callable[[], Broker]
) -> Iterator[Machine]:
    """A machine with our commands, and brokers at the ports that pages name."""
    ports = {port: str(make_broker().port) for port in ("1883", "1884", "1885")}
    ports |= {port: str(free_port()) for port in ("8883", "8884", "8088")}
    made = Machine(tmp_path, **ports, **{"gw-otani.example": "127.0.0.1"})
    for name in (*PACKAGES, END):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("etc", "usr-bin", "mosquitto"):
        (tmp_path / name).mkdir()
    (tmp_path / "systemd").symlink_to(ROOT / "systemd")
    made.env |= {"OFFICE": str(office), "DESTDIR": str(tmp_path / "image")}
    yield made
    made.run(END)


def typed(page: str) -> str:
    """What somebody types who follows a page; Python goes on from block to block."""
    told, python = [], ""
    for number, (language, text) in enumerate(blocks(page, "sh", "python")):
        python += text * (language == "python")
        script = f"{sys.executable} - <<'END'\n{python}END\n"
        before = RUN[page].before.get(number, "")
        told.append(f"{before}\necho 'block {number} of {page}' >&2\n")
        told.append(script if language == "python" else text)
    return PATIENT + "".join(told)


WITH_SPARK = re.compile(r"^backend-spark (score|replay|trim) ", re.MULTILINE)


@pytest.mark.broker
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=(pytest.mark.spark, pytest.mark.long)
            if any(WITH_SPARK.search(text) for _, text in blocks(page, "sh"))
            else (),
        )
        for page in RUN
    ],
)
def test_every_command_of_a_page_runs(page: str, machine: Machine) -> None:
    """One after another, as they stand there; each ends with 0, daemons too."""
    machine.names = {**RUN[page].names, **machine.names}
    if RUN[page].has_tables:
        write_tables(machine.folder / "var/backend", [SLOPE], END_S)
    machine.run(typed(page), timeout_s=900)
    machine.run(END)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_block_falls_through(path: Path) -> None:
    """Each has a language, and a page with commands has somebody who runs them."""
    page = str(path.relative_to(ROOT))
    languages = {language for language, _ in FENCE.findall(path.read_text("utf-8"))}

    assert languages <= LANGUAGES
    if languages & {"sh", "python"}:
        assert (page in RUN) != (page in BY_OTHERS), page


def test_pages_of_other_tests_are_theirs() -> None:
    """A page that is left to a test is named there."""
    for page, test in BY_OTHERS.items():
        text = (Path(__file__).parent / test).read_text("utf-8")
        assert page in text.replace('" / "', "/"), test
