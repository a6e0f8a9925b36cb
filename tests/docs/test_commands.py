"""Runs every shell block of every page, in the order of the page, in a real shell.

`page_stubs` replaces commands that need a whole machine; paths and ports are
replaced by those of a folder. A page without an entry in `RUN` or `BY_OTHERS` fails.
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
from command_server import CLIENT_SCRIPT, END, PACKAGES, SOCKETS
from conftest import Broker, free_port, wait_until
from console_tables import Slope, storm, write_tables
from page_shell import ROOT, Machine

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(\S*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "python", "toml", "ini", "csv", "yaml", "conf", "text"}
"""Allowed languages of blocks; blocks of the first two are run."""

BY_OTHERS = {
    "docs/tutorial/first-node.md": "test_tutorial.py",
    "docs/how-to/backup.md": "test_backup.py",
    "docs/how-to/notebook.md": "test_notebook.py",
    "docs/how-to/joint.md": "test_joint_page.py",
    "docs/how-to/postgis.md": "test_postgis_page.py",
}
"""Pages whose blocks are run by their own test."""

END_S = 1_782_918_000
END_TEXT = "2026-07-02T00:00+09:00"
SLOPE = Slope("otani-1", 33.5588, 133.5312, storm(26, 60))


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Blocks of a page in order: language and text, without indentation."""
    text = (ROOT / page).read_text("utf-8")
    return [
        (language, re.sub(rf"^{re.match(' *', body)[0]}", "", body, flags=re.MULTILINE))
        for language, body in FENCE.findall(text)
        if language in languages
    ]


def file_of(page: str, number: int, path: str, language: str = "toml") -> str:
    """Shell command that writes a page's TOML block to a file, or that of another."""
    _, text = blocks(page, language)[number]
    return f"cat > {path} <<'END'\n{text}END\n"


@dataclass(frozen=True)
class Page:
    """How to run the blocks of a page.

    Attributes:
        before: Shell commands to run before a block, by the number of the block or the
            first words in it: the steps that the page or the pages that it links to
            assume.
        names: Replacements in the text of the blocks.
        has_tables: Whether the backend's folder has tables of a storm.
    """

    before: Mapping[int | str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    has_tables: bool = False


RETRY = """
shopt -s expand_aliases
again() { for _ in $(seq 60); do "$@" && return; sleep 1; done; return 1; }
"""
"""`again` repeats commands whose time-out is too short on a busy machine."""

PLAIN_MANAGER = {
    "mqtts://manager.example:8884 --config admin.toml": "mqtt://127.0.0.1:1883"
}
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

# A Manager's broker beside the authority, with the issued certificates.
CERTIFIED = """
cp /var/lib/yamamori-ca/ca.pem /var/lib/yamamori-ca/issued/{signer,kochi-0001}.* .
cp bootfs/kochi-0001.key .
ca broker-config manager north --out broker --port 8883 --daemons-port 8884
printf 'user %s\\ninclude_dir %s\\n' "$(id -un)" "$PWD/broker" > broker.conf
mosquitto -c broker.conf &
trap "kill $!" EXIT
"""

# Rain of 500 days with a storm on every tenth day, and twelve landslides.
RAIN = """
awk 'BEGIN { print "time_local_end,KPAE_mm,rain_mm"; for (h = 0; h < 12000; h++) {
  mm = h % 240 > 200 ? h % 7 : 0
  at = strftime("%Y-%m-%dT%H:00:00", 1283299200 + 3600 * h, 1)
  printf "%s,%d,%d\\n", at, mm, mm
  if (h % 960 == 230) print substr(at, 1, 10) > "landslides.csv" } }' > rain.csv
printf '%s\\n' 'ダウンロードした時刻：2026/06/02 12:31:33' '' ',高知,高知,高知' \\
  '年月日時,降水量(mm),降水量(mm),降水量(mm)' ',,品質情報,均質番号' \\
  '2026/6/1 23:00:00,3.5,8,1' '2026/6/1 24:00:00,0,8,1' | iconv -t cp932 > data.csv
"""

READINGS = (
    f"cat > storm.csv <<'END'\n{blocks('docs/how-to/judge.md', 'csv')[0][1]}END\n"
)

# A criteria table of one's own.
CRITERIA = (
    "mkdir /etc/yamamori/criteria\n"
    "printf 'mesh,LEVEL1,LEVEL2\\n52354500,100,150\\n' > /etc/yamamori/criteria/x.csv\n"
    + file_of("docs/how-to/backend.md", 3, "criteria.toml")
    + "cat criteria.toml >> backend.toml\n"
)

FORECAST = (
    "mkdir -p past /var/lib/yamamori/forecast\n"
    + file_of("docs/how-to/backend.md", 5, "forecast.toml")
    + "cat forecast.toml >> backend.toml\n"
    + "cat > /var/lib/yamamori/forecast/jma.csv <<'END'\n"
    + blocks("docs/how-to/backend.md", "csv")[0][1]
    + "END\ncp /var/lib/yamamori/forecast/jma.csv past/\n"
)

ELEVATIONS = """mkdir -p dem/14/14270 xyz/3/7
awk 'BEGIN { for (y = 0; y < 256; y++) { for (x = 0; x < 255; x++) printf "%d,", x
  print y } }' > dem/14/14270/6570.txt
printf '\\211PNG' > xyz/3/7/2.png
"""

# Files of two analyses, in the folders of the settings and in that of the past.
ANALYSES = f"""
cat >> backend.toml <<'END'
{blocks("docs/how-to/backend.md", "toml")[6][1]}END
{sys.executable} - <<'END'
import sys
sys.path.insert(0, "{ROOT}/tests")
from datetime import timedelta
from pathlib import Path
import numpy as np
from jma_grib import AT, index_file, rain_file
values = np.full((60, 90), 12.0)
for path, file in {{
    "/var/lib/yamamori/psw/psw.bin": index_file(values, AT),
    "/var/lib/yamamori/prr/prr.bin": rain_file(values, AT),
    "past/prr/prr.bin": rain_file(values, AT - timedelta(minutes=10)),
}}.items():
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    file.but(north=35.5, west=135.0).write(Path(path))
END
"""

WITHOUT_TLS = {
    "--cafile ca.pem --cert east.pem --key east.key -h broker.example -p 8883": (
        "-h 127.0.0.1 -p 1884"
    )
}
ONE_CORE = {"local[2]": "local[1]"}
CLUSTER = {
    "spark://10.0.0.1:7077": "local[1]",
    # The stand-in for `spark-class` only checks that the class exists.
    "python -c 'import pyspark; print(pyspark.__path__[0])'": "echo .",
}
ACCOUNTS = "/var/lib/yamamori/backend/accounts"
PASSWORD = {"--role": "--password 'correct horse battery' --role"}

RUN = {
    "README.md": Page(),
    "docs/how-to/autoscale.md": Page(
        {0: OFFICE},
        PLAIN_MANAGER | {"gateway-daemon admin": "again gateway-daemon admin"},
    ),
    "docs/how-to/backend.md": Page(
        {
            0: BACKEND,
            1: f"{END}\n"
            + file_of("docs/how-to/backend.md", 1, "shards.toml")
            + "cat shards.toml >> backend.toml\n",
            "from backend_spark": END,
            "backend-spark criteria": CRITERIA,
            "backend-spark forecast": FORECAST,
            "backend-spark analysis": ANALYSES,
            "backend-spark index": RAIN,
        },
        ONE_CORE | CLUSTER | WITHOUT_TLS,
        has_tables=True,
    ),
    "docs/how-to/certificates.md": Page(
        {
            3: """mkdir bootfs
cp /var/lib/yamamori-ca/issued/kochi-0001.key bootfs/
openssl req -new -key /var/lib/yamamori-ca/issued/kochi-0001.key -subj /CN=kochi-0001 \\
  -out bootfs/kochi-0001.csr
""",
            4: CERTIFIED
            + file_of("docs/how-to/certificates.md", 2, "/etc/yamamori/signer.toml"),
            5: NODE
            + file_of("docs/how-to/certificates.md", 1, "tls.toml")
            + "cat tls.toml >> /etc/yamamori/node.toml\n",
        },
        {"--owner mosquitto": '--owner "$(id -un)"', "yamamori-ca:": '"$(id -un):"'}
        | {"-R mosquitto:": '-R "$(id -un):"', "/root/brokers": "brokers"}
        | {"/media/safe/root.key": "/var/lib/yamamori-ca/root.key"}
        | {"/media/BOOTFS/yamamori": "bootfs", "-g yamamori": '-g "$(id -gn)"'}
        | {"-o yamamori-ca": '-o "$(id -un)"'},
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
            + file_of("docs/how-to/console.md", 0, "places.csv", "csv"),
            "systemctl stop backend-console": "mkdir -p /var/lib/yamamori/backend/log\n"
            "backend-spark backup --config backend.toml "
            "/var/lib/yamamori/backup/2026-11-25\n",
            "backend-spark map-pack relief": ELEVATIONS,
        },
        # The test of the second factor enters a code.
        PASSWORD
        | {f"backend-spark console-account totp {ACCOUNTS} suzuki  ": "true"}
        | {" --head 1234:5f1c...": ""},
    ),
    "docs/how-to/standards.md": Page(
        {
            1: BACKEND + "printf '[console]\\nport = 8088\\n' >> backend.toml\n"
            f"echo 'accounts = \"{ACCOUNTS}\"' >> backend.toml\n"
            f"TOKEN=$(backend-spark console-account token {ACCOUNTS} qgis)\n"
            "backend-spark console --config backend.toml\n"
        },
        PASSWORD
        | {
            "curl --user qgis:TOKEN": "curl --fail --user qgis:$TOKEN "
            "--retry 30 --retry-delay 1 --retry-connrefused",
            "https://console.city.example": "http://127.0.0.1:8088",
        },
        has_tables=True,
    ),
    "docs/how-to/install-packages.md": Page({
        "sudo apt install ./yamamori-common_*.deb ./yamamori-node_*.deb     #": NODE
    }),
    # The tables end in the past, and an export of the present is refused then.
    "docs/how-to/export.md": Page(
        {0: BACKEND},
        {
            "geojson --out": f"geojson --at {END_TEXT} --out",
            "cap --sender": f"cap --status Test --at {END_TEXT} --sender",
        },
        has_tables=True,
    ),
    "docs/how-to/judge.md": Page({0: BACKEND + READINGS}),
    GATEWAY: Page({
        0: OFFICE.partition("gateway-daemon")[0],
        1: file_of(GATEWAY, 2, "broker.toml"),
    }),
    "docs/how-to/image.md": Page(
        {
            3: OFFICE + "openssl genpkey -algorithm ed25519 -out rollout.pem\n"
            """echo '{"version": "0.2.0", "role": "node"}' > manifest.json\n"""
            "tar -cf yamamori-node.update manifest.json\n"
        },
        PLAIN_MANAGER
        | {"$(gateway-daemon": "$(again gateway-daemon"}
        | {"image/bundle.py": f"{ROOT}/image/bundle.py"},
    ),
    "docs/how-to/node.md": Page({0: NODE}),
    "docs/how-to/systemd.md": Page(
        {
            0: NODE,
            1: file_of(GATEWAY, 1, "/etc/yamamori/gateway.toml")
            + file_of("docs/how-to/backend.md", 0, "/etc/yamamori/backend.toml"),
            # In place of `systemctl`: start the agent, and stop it.
            2: "export RUNTIME_DIRECTORY=$PWD/run; mkdir run\n"
            "edge-agent run --config /etc/yamamori/node.toml\n",
            3: END,
        },
        # Exit status 1: no gateway; the brokers must be started, and perhaps the clock.
        {
            "edge-agent status\n": "edge-agent status --run run || test $? = 1\n",
            "check --config /etc/yamamori/gateway.toml ": (
                "check --config /etc/yamamori/gateway.toml || test $? = 1 "
            ),
            "check --config /etc/yamamori/backend.toml ": (
                "check --config /etc/yamamori/backend.toml || test $? = 1 "
            ),
        },
    ),
    "docs/how-to/triage.md": Page({}, {"-h gateway": "-h 127.0.0.1 -p 1884"}),
    "docs/how-to/way-back.md": Page({}, {"-g yamamori": '-g "$(id -gn)"'}),
    "docs/reference/overlay.md": Page(
        {}, {"--nodes 100000": "--nodes 2000", "--trials 30": "--trials 1"}
    ),
    "docs/reference/topology.md": Page({
        0: file_of("docs/reference/topology.md", 0, "kochi.toml")
    }),
}


@pytest.fixture(scope="module")
def command_server() -> Iterator[Path]:
    """Two processes that run our commands; the second one keeps a JVM."""
    with TemporaryDirectory(prefix="commands-", dir="/tmp") as name:
        folder = Path(name)
        process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/command_server.py"), name],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            wait_until(lambda: len([*folder.iterdir()]) == len(SOCKETS))
            yield folder
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@pytest.fixture
def machine(
    command_server: Path, tmp_path: Path, make_broker: Callable[[], Broker]
) -> Iterator[Machine]:
    """A machine with our commands, and brokers at the ports of the pages."""
    ports = {port: str(make_broker().port) for port in ("1883", "1884", "1885")}
    ports |= {port: str(free_port()) for port in ("8883", "8884", "8088", "9466")}
    made = Machine(tmp_path, **ports, **{"gw-otani.example": "127.0.0.1"})
    for name in (*PACKAGES, END):
        (tmp_path / "bin" / name).write_text(CLIENT_SCRIPT)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("etc", "usr-bin", "mosquitto"):
        (tmp_path / name).mkdir()
    (tmp_path / "systemd").symlink_to(ROOT / "systemd")
    made.env |= {
        "COMMAND_SERVER": str(command_server),
        "DESTDIR": str(tmp_path / "image"),
    }
    yield made
    made.run(END)


def steps_before(page: str, number: int, text: str) -> str:
    """Shell commands to run before a block."""
    return "".join(
        commands
        for key, commands in RUN[page].before.items()
        if key == number or (isinstance(key, str) and text.startswith(key))
    )


def script_of(page: str) -> str:
    """Shell script of all blocks of a page; Python blocks share their state."""
    parts, python = [], ""
    for number, (language, text) in enumerate(blocks(page, "sh", "python")):
        python += text * (language == "python")
        script = f"{sys.executable} - <<'END'\n{python}END\n"
        parts.append(steps_before(page, number, text))
        parts.append(f"\necho 'block {number} of {page}' >&2\n")
        parts.append(script if language == "python" else text)
    return RETRY + "".join(parts)


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
    """One after another, as written; each exits with 0, also daemons."""
    machine.names = {**RUN[page].names, **machine.names}
    if RUN[page].has_tables:
        write_tables(machine.folder / "var/backend", [SLOPE], END_S)
    machine.run(script_of(page), timeout_s=900)
    machine.run(END)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_has_a_language_and_every_command_a_test(path: Path) -> None:
    """A page with commands is run here or by another named test."""
    page = str(path.relative_to(ROOT))
    languages = {language for language, _ in FENCE.findall(path.read_text("utf-8"))}

    assert languages <= LANGUAGES
    if languages & {"sh", "python"}:
        assert (page in RUN) != (page in BY_OTHERS), page


def test_pages_run_by_other_tests_are_named_there() -> None:
    for page, test in BY_OTHERS.items():
        text = (Path(__file__).parent / test).read_text("utf-8")
        assert page in text.replace('" / "', "/"), test
