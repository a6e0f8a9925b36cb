"""The layer for rpi-image-gen is well formed and uses the files of `make image`.

Source: rpi-image-gen, docs/layer/index.adoc.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "image"
TEXT = (IMAGE / "rpi-image-gen/layer/yamamori.yaml").read_text()
HEADER, BODY = TEXT.split("# METAEND\n")
LAYER_KEYS = {"Name", "Category", "Desc", "Version", "Requires", "Provides"}
VARIABLE_KEYS = {"Desc", "Required", "Valid", "Set"}


def fields() -> dict[str, str]:
    """The metadata: DEB822 fields in comments."""
    lines = HEADER.removeprefix("# METABEGIN\n").splitlines()
    return dict(line.removeprefix("# ").split(": ", 1) for line in lines)


def hooks() -> list[str]:
    """Commands that run in the root, as plain scalars of one line each."""
    return re.findall(r"^    - (.*)$", BODY, re.MULTILINE)


def test_body_is_yaml_of_plain_scalars() -> None:
    """No hook contains text that YAML would parse as mapping, comment or quote."""
    lines = [line for line in BODY.splitlines() if line.strip()[:1] != "#"]
    assert lines[:3] == ["---", "mmdebstrap:", "  customize-hooks:"]
    assert lines[3:] == [f"    - {hook}" for hook in hooks()]
    for hook in hooks():
        assert re.match(r"[a-z]", hook)
        assert not re.search(r": | #|\t", hook)


def test_metadata_has_the_documented_form() -> None:
    """Known keys, a version of three numbers, and a rule for every variable."""
    metadata = fields()
    layer = {k.removeprefix("X-Env-Layer-") for k in metadata if "-Layer-" in k}
    assert {"Name", "Version", "Requires"} <= layer <= LAYER_KEYS
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata["X-Env-Layer-Version"])
    variables = [
        k.removeprefix("X-Env-Var-").split("-") for k in metadata if "-Var-" in k
    ]
    names = {name for name, *_ in variables}
    assert {key for _, *rest in variables for key in rest} <= VARIABLE_KEYS
    assert all([name, "Valid"] in variables for name in names)
    assert metadata["X-Env-Var-role"] in metadata["X-Env-Var-role-Valid"].split(",")


def test_hooks_use_only_declared_variables() -> None:
    """An undeclared variable would be empty, so a path would be wrong."""
    metadata = fields()
    prefix = metadata["X-Env-VarPrefix"]
    declared = {
        f"IGconf_{prefix}_{key.removeprefix('X-Env-Var-')}"
        for key in metadata
        if key.startswith("X-Env-Var-") and key.count("-") == 3
    }
    assert set(re.findall(r"IGconf_\w+", " ".join(hooks()))) == declared


def test_files_are_those_of_make_image() -> None:
    """Each path below image/ exists, for both roles."""
    used = " ".join(hooks()).replace('"', "").replace("$IGconf_yamamori_source/", "")
    for role in ("node", "gateway"):
        paths = re.findall(
            r"image/[\w/.-]+", used.replace("$IGconf_yamamori_role", role)
        )
        assert {"image/lib/ours", f"image/packages/{role}", "image/units"} <= set(paths)
        assert all((ROOT / path).exists() for path in paths)


@pytest.mark.parametrize("role", ["node", "gateway"])
def test_enabled_units_are_ours_or_of_a_package(role: str) -> None:
    """A misspelt name would fail the build only after a quarter of an hour."""
    folders = (
        *(
            IMAGE / "files/etc/systemd/system",
            ROOT / "systemd",
            ROOT / "systemd/broker",
            ROOT / "systemd/firewall",
        ),
        IMAGE / "roles" / role / "etc/systemd/system",
    )
    ours = {path.name for folder in folders for path in folder.glob("*.*")}
    packages = (IMAGE / "lock" / role).read_text().split()
    for name in ("common", "slots", role):
        for unit in (IMAGE / "units" / name).read_text().split():
            full = unit if "." in unit else f"{unit}.service"
            full = re.sub(r"@\w+", "@", full)
            is_packaged = unit in packages or unit == "systemd-networkd"
            assert full in ours or is_packaged, unit


@pytest.mark.parametrize(
    "unit",
    ["gateway-daemon", "gateway-manager", "yamamori-renew@"],
)
def test_gateways_daemons_may_read_the_certificates_of_its_card(unit: str) -> None:
    """The card's certificates are in the broker's folder."""
    folder = IMAGE / "roles/gateway/etc"
    rights = (folder / "tmpfiles.d/yamamori-gateway.conf").read_text()
    texts = (folder / f"systemd/system/{unit}.service.d").glob("*.conf")

    assert rights == "d /etc/yamamori/mosquitto 0750 root mosquitto -\n"
    assert "SupplementaryGroups=mosquitto" in "".join(t.read_text() for t in texts)


@pytest.mark.parametrize(
    ("role", "settings"), [("node", {"node"}), ("gateway", {"gateway", "manager"})]
)
def test_card_renews_its_certificates(role: str, settings: set[str]) -> None:
    """Without this a card went silent when its certificate ended, after 398 days."""
    enabled = (IMAGE / "units" / role).read_text().split()
    script = (IMAGE / "lib/ours").read_text()
    (units,) = re.findall(rf'{role}\) .*?units="([^"]*)"', script)
    (programs,) = re.findall(r"for program in (.*); do", script)
    unit = (ROOT / "systemd/yamamori-renew@.service").read_text()
    (program,) = re.findall(r"^ExecStart=/usr/bin/(\S+)", unit, re.MULTILINE)

    assert {f"yamamori-renew@{each}.timer" for each in settings} <= set(enabled)
    assert "yamamori-renew@" in units.split()
    assert program in [each.partition(":")[0] for each in programs.split()]
