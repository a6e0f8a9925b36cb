"""The images, and the files that run them: compose and Kubernetes.

The short tests compare the files with the programs. The long one builds the images from
a Debian made here, and runs compose.yaml.
"""

import configparser
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend_spark.config import read_settings
from gateway_daemon.config import read_manager_settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "containers"
READERS = {"backend.toml": read_settings, "manager.toml": read_manager_settings}
MODULES = {"backend-spark": "backend_spark", "gateway-daemon": "gateway_daemon"}
TARGETS = {"broker", "gateway", "backend"}
BROKERS = ("broker", "manager-broker")
UNITS = {
    **{
        name: f"backend-{name}"
        for name in ("ingest", "alerts", "score", "console", "notify")
    },
    "manager": "gateway-manager",
}
"""Services of compose.yaml that are programs of ours, and their units."""


def services() -> dict[str, dict[str, Any]]:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def unit_of(service: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / f"systemd/{UNITS[service]}.service")
    return parser["Service"]


def containerfile() -> str:
    return (FOLDER / "Containerfile").read_text("utf-8")


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)(s|m|min)?", text)
    assert found is not None, text
    return int(found[1]) * (60 if found[2] in {"m", "min"} else 1)


def test_services_are_the_programs_and_two_brokers() -> None:
    """Each has an image of the Containerfile."""
    found = services()
    stages = set(re.findall(r"^FROM .* AS (\S+)$", containerfile(), re.MULTILINE))

    assert set(found) == {*UNITS, *BROKERS}
    assert stages >= TARGETS
    assert {each["image"] for each in found.values()} == {
        f"yamamori-{target}" for target in TARGETS
    }


@pytest.mark.parametrize("name", UNITS)
def test_service_runs_as_its_unit(name: str) -> None:
    """Command, time to stop and watchdog; WATCHDOG_USEC is that of the image."""
    service, unit = services()[name], unit_of(name)
    image = re.search(r"WATCHDOG_USEC=(\d+)", containerfile())
    assert image is not None
    watchdog = service.get("environment", {}).get("WATCHDOG_USEC", image[1])
    program, *arguments = shlex.split(unit["ExecStart"])

    assert service["command"] == [Path(program).name, *arguments]
    assert seconds(service["stop_grace_period"]) == seconds(unit["TimeoutStopSec"])
    assert int(watchdog) == seconds(unit["WatchdogSec"]) * 1_000_000


@pytest.mark.parametrize("name", [*UNITS, *BROKERS])
def test_service_is_confined(name: str) -> None:
    """No root, nothing written but volumes and a tmpfs; reached from here alone."""
    service = services()[name]
    user = service["user"].partition(":")[0]

    assert int(user) > 0
    assert f"--uid {user} " in containerfile()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert {each.partition(":")[0] for each in service["tmpfs"]} == {"/tmp"}  # noqa: S108


@pytest.mark.parametrize("name", [*UNITS, *BROKERS])
def test_service_starts_again_after_a_reboot(name: str) -> None:
    """podman-restart.service starts containers with this policy, and no others."""
    assert services()[name]["restart"] == "always"


def test_images_do_not_end_as_root() -> None:
    """Also without compose.yaml."""
    for stage in re.split(r"^FROM ", containerfile(), flags=re.MULTILINE)[1:]:
        name = stage.partition("\n")[0].rpartition(" ")[2]
        users = re.findall(r"^USER (\d+):\d+$", stage, re.MULTILINE)
        assert (users != []) == (name in TARGETS), name


@pytest.mark.parametrize("name", [*UNITS, *BROKERS])
def test_health_command_exists(name: str) -> None:
    """A program of ours, or one of the packages that the image installs."""
    words = shlex.split(services()[name]["healthcheck"]["test"].partition("||")[0])
    if name in BROKERS:
        assert words[0] == "mosquitto_sub"
        assert "mosquitto-clients" in containerfile()
        socket = words[words.index("--unix") + 1]
        assert f"listener 0 {socket}" in (FOLDER / "mosquitto.conf").read_text()
        return
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, check=False
    )
    assert words[0] == "python3"
    assert (done.returncode, done.stdout) == (
        1,
        "the program is not ready, or stops\n",
    )


@pytest.mark.parametrize("name", UNITS)
def test_settings_of_a_service_are_read_by_its_program(name: str) -> None:
    """Data are in a named volume, brokers are services, addresses are published."""
    found = services()
    service = found[name]
    path = Path(service["command"][-1])
    mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    settings: Any = READERS[path.name](FOLDER / mounts[str(path.parent)] / path.name)
    data = settings.manager.data if name == "manager" else settings.backend.data
    urls = re.findall(
        r"mqtt://([\w-]+):1883", (FOLDER / "settings" / path.name).read_text()
    )

    assert not mounts[data].startswith((".", "/"))
    assert set(urls) <= set(BROKERS)
    if name == "console":
        assert service["ports"] == [f"127.0.0.1:8088:{settings.console.port}"]
        assert Path(settings.console.accounts).is_relative_to(data)


def test_console_trusts_the_gateway_of_its_network_alone() -> None:
    """A TLS proxy of the host comes from there; no other container does."""
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    (pool,) = compose["networks"]["default"]["ipam"]["config"]
    settings = read_settings(FOLDER / "settings/backend.toml")
    page = (ROOT / "docs/how-to/containers.md").read_text("utf-8")

    assert ip_address(pool["gateway"]) in ip_network(pool["subnet"])
    assert settings.console.proxies == (pool["gateway"],)
    assert f"--subnet {pool['subnet']} --gateway {pool['gateway']} " in page


def test_page_renews_into_volumes() -> None:
    """The settings are read-only; each program has a file of its own."""
    page = (ROOT / "docs/how-to/containers.md").read_text("utf-8")
    renewed = re.findall(r"`renewed = \"(/\S+)/identity-(\w+)\.pem\"`", page)
    found = {
        name: [volume.split(":")[1:] for volume in services()[name]["volumes"]]
        for _, name in renewed
    }

    assert {name for _, name in renewed} == {"ingest", "notify", "manager"}
    assert all([folder] in found[name] for folder, name in renewed)
    assert "exec -T %i spatial-mqtt renew --config /etc/yamamori/%i.toml" in page


@pytest.mark.parametrize("name", BROKERS)
def test_broker_keeps_its_data_in_its_volume(name: str) -> None:
    """And reads its listeners from the folder that the page names."""
    volumes = services()[name]["volumes"]
    conf = (FOLDER / "mosquitto.conf").read_text()

    assert volumes == [
        f"{name}:/var/lib/yamamori",
        f"./{name}:/etc/mosquitto/yamamori:ro",
    ]
    assert "persistence_location /var/lib/yamamori/" in conf
    assert "include_dir /etc/mosquitto/yamamori" in conf
    assert "listener 1883" in (FOLDER / name / "plain.conf").read_text()


def copied() -> Iterator[str]:
    for line in re.findall(r"^COPY (?!--from)(.*)$", containerfile(), re.MULTILINE):
        yield from line.split()[:-1]


def test_context_has_what_is_copied_and_nothing_else() -> None:
    """No .git, no .venv and no secret is sent to the engine."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}

    assert "*" in lines
    assert allowed == set(copied())


def manifests() -> list[dict[str, Any]]:
    text = (FOLDER / "kubernetes/backend.yaml").read_text("utf-8")
    return list(yaml.safe_load_all(text))


def deployments() -> dict[str, dict[str, Any]]:
    """Deployments by name."""
    return {
        each["metadata"]["name"]: each["spec"]
        for each in manifests()
        if each["kind"] == "Deployment"
    }


def names_of(kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in manifests() if each["kind"] == kind}


@pytest.mark.parametrize("name", deployments())
def test_deployment_is_consistent(name: str) -> None:
    """Labels select the pods; volumes are mounted once, claims and maps are there."""
    spec = deployments()[name]
    template = spec["template"]
    (container,) = template["spec"]["containers"]
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    mounts = [each["name"] for each in container["volumeMounts"]]
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in volumes.values()
        if "persistentVolumeClaim" in each
    }
    maps = {
        each["configMap"]["name"] for each in volumes.values() if "configMap" in each
    }

    assert spec["selector"]["matchLabels"] == {"app": name}
    assert template["metadata"]["labels"] == {"app": name, "part-of": "yamamori"}
    assert spec["strategy"] == {"type": "Recreate"}, "two would hold one session"
    assert spec["replicas"] == 1 or name in {"score", "spark-worker"}
    assert sorted(mounts) == sorted(volumes)
    assert claims <= names_of("PersistentVolumeClaim")
    assert maps <= names_of("ConfigMap")
    assert container["image"].removeprefix("yamamori-") in TARGETS


@pytest.mark.parametrize("name", ["score", "spark-master", "spark-worker"])
def test_pods_of_spark_are_reached_at_their_addresses(name: str) -> None:
    """Other pods cannot resolve the name of a pod, which Spark takes otherwise."""
    (container,) = deployments()[name]["template"]["spec"]["containers"]
    address, *more = container["env"]

    assert address == {
        "name": "POD_IP",
        "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
    }
    if name == "score":
        assert more == [{"name": "SPARK_LOCAL_HOSTNAME", "value": "$(POD_IP)"}]
    else:
        at = container["args"].index("--host")
        assert container["args"][at + 1] == "$(POD_IP)"


def test_master_of_spark_finds_its_jobs_after_a_restart() -> None:
    """Without a store it kills their executors, and no pass ends."""
    (container,) = deployments()["spark-master"]["template"]["spec"]["containers"]
    options = {each["name"]: each.get("value") for each in container["env"]}
    found = dict(
        word.removeprefix("-Dspark.deploy.").split("=")
        for word in options["SPARK_MASTER_OPTS"].split()
    )
    (store,) = (each for each in container["volumeMounts"] if each["name"] != "tmp")

    assert found["recoveryMode"] == "FILESYSTEM"
    assert Path(found["recoveryDirectory"]).is_relative_to(store["mountPath"])
    assert store["name"] in names_of("PersistentVolumeClaim")


def test_logs_of_executors_are_limited() -> None:
    """By the worker, which writes them: a setting of the job has no effect there."""
    (container,) = deployments()["spark-worker"]["template"]["spec"]["containers"]
    options = {each["name"]: each.get("value") for each in container["env"]}
    found = dict(
        word.removeprefix("-Dspark.executor.logs.rolling.").split("=")
        for word in options["SPARK_WORKER_OPTS"].split()
    )

    assert found["strategy"] == "size"
    assert int(found["maxSize"]) * (int(found["maxRetainedFiles"]) + 1) < 100_000_000


@pytest.mark.parametrize("name", deployments())
def test_pod_is_confined(name: str) -> None:
    """As the services of compose.yaml are."""
    spec = deployments()[name]["template"]["spec"]
    (container,) = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert f"--uid {spec['securityContext']['runAsUser']} " in containerfile()
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", sorted({*deployments()} & {*UNITS}))
def test_pod_runs_as_its_unit(name: str) -> None:
    """Its unit's command, time to stop, and the health check of compose.yaml."""
    spec = deployments()[name]["template"]["spec"]
    (container,) = spec["containers"]
    program, *arguments = shlex.split(unit_of(name)["ExecStart"])
    given = [word for word in container["args"] if word != "--standby"]
    health = shlex.split(services()[name]["healthcheck"]["test"])

    assert given == [Path(program).name, *arguments]
    assert ("--standby" in container["args"]) == (deployments()[name]["replicas"] > 1)
    assert spec["terminationGracePeriodSeconds"] == seconds(
        unit_of(name)["TimeoutStopSec"]
    )
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == health


def test_manifests_name_services_that_exist(tmp_path: Path) -> None:
    """Settings are read by their program, and addresses are Services of the file."""
    maps = {
        each["metadata"]["name"]: each["data"]
        for each in manifests()
        if each["kind"] == "ConfigMap"
    }
    path = tmp_path / "backend.toml"
    path.write_text(maps["yamamori-settings"]["backend.toml"])
    settings = read_settings(path)
    ports = {
        (each["metadata"]["name"], each["spec"]["ports"][0]["port"])
        for each in manifests()
        if each["kind"] == "Service"
    }
    text = " ".join([
        path.read_text(),
        *deployments()["spark-worker"]["template"]["spec"]["containers"][0]["args"],
    ])
    named = re.findall(r"(?:mqtt|spark)://([\w-]+):(\d+)", text)
    selected = {
        each["spec"]["selector"]["app"]
        for each in manifests()
        if each["kind"] == "Service"
    }

    assert {(host, int(port)) for host, port in named} <= ports
    assert ("console", settings.console.port) in ports
    assert selected <= {*deployments()}
    assert (
        maps["yamamori-broker"]["plain.conf"]
        in "\n".join([
            line
            for line in (FOLDER / "broker/plain.conf").read_text().splitlines()
            if not line.startswith("#")
        ])
        + "\n"
    )
    mount = deployments()["score"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert settings.backend.data in {each["mountPath"] for each in mount}
