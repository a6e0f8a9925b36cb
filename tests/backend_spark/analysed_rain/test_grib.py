"""GRIB2 of JMA: run lengths, grid and product; ecCodes as the independent reader."""

import random
import struct

import eccodes
import numpy as np
import pytest
from jma_grib import (
    AT,
    INDEX_LEVELS,
    RAIN_LEVELS,
    JmaFile,
    Layer,
    index_file,
    rain_file,
    section,
)

from backend_spark.criteria.tables import mesh_center
from backend_spark.grib_files import (
    mesh_rows_and_columns,
    read_fields,
    unpack_run_lengths,
)
from service_runtime.errors import FieldError

MISSING = 9999.0
"""ecCodes' default value of a missing point."""


def rain(seed: int, shape: tuple[int, int] = (80, 90)) -> np.ndarray:
    """A shower in a dry area, with an unknown one around it."""
    mm = np.zeros(shape)
    mm[:4], mm[:, :5] = np.nan, np.nan
    mm[20:50, 30:60] = np.random.default_rng(seed).integers(0, 77, (30, 30))
    return mm


def decoded_by_eccodes(file: JmaFile) -> np.ndarray:
    """Values by ecCodes, whose tables lack JMA's product template."""
    handle = eccodes.codes_new_from_message(file.but(template=0).to_bytes())
    values = eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)
    return np.where(values == MISSING, np.nan, values)


@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_that_eccodes_decodes(seed: int) -> None:
    """And those that were encoded; level 0 is missing, level 1 is no rain."""
    mm = rain(seed)
    file = rain_file(mm)
    (field,) = read_fields(file.to_bytes())
    values = field.values()

    np.testing.assert_array_equal(values, mm)
    np.testing.assert_allclose(values.ravel(), decoded_by_eccodes(file), atol=1e-9)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("greatest", [1, 97, 98, 253])
def test_runs_of_any_base(bits: int, greatest: int) -> None:
    """From two digits to base 65534; a whole line without a change among them."""
    levels = np.random.default_rng(greatest).integers(0, greatest + 1, (40, 50))
    levels[10:30] = 1
    levels[0, 0] = greatest
    table = tuple(range(300))
    file = JmaFile([Layer(levels)], table=table, bits=bits)
    (field,) = read_fields(file.to_bytes())

    expected = np.where(levels == 0, np.nan, (levels - 1) / 10)
    np.testing.assert_array_equal(field.values(), expected)
    np.testing.assert_allclose(expected.ravel(), decoded_by_eccodes(file), atol=1e-9)


def test_example_of_the_description() -> None:
    """{3, 9, 12, 6, 4, 15, 2, 1, 0, 13, 12, 2, 3} of 4 bits with 10 levels, on 8 bits.

    In base 5 the run of 0 is 2 + 5 + 1; here base is 245, so the same runs are written
    with other digits: 9 twice, 4 five times, 0 eight times.
    """
    units = bytes([3, 9, 12, 6, 4, 15, 2, 1, 0, 18, 2, 3])
    table = struct.pack(">10H", *range(10))
    five = section(5, struct.pack(">IHBHHB", 21, 200, 8, 10, 10, 0) + table)
    values = unpack_run_lengths(five, section(7, units), 21)
    levels = [3, 9, 9, 6, 4, 4, 4, 4, 4, 2, 1, *[0] * 8, 2, 3]

    expected = [float("nan") if level == 0 else level - 1 for level in levels]
    np.testing.assert_array_equal(values, expected)


def test_total_of_three_fields_and_its_times() -> None:
    """The tanks are further fields of the same message."""
    mm = rain(1) * 3
    fields = list(read_fields(index_file(mm).to_bytes()))

    assert [field.surface for field in fields] == [200, 201, 201]
    np.testing.assert_array_equal(fields[0].values(), mm)
    assert {field.at_s for field in fields} == {AT.timestamp()}
    assert fields[0].from_s is None
    (hour,) = read_fields(rain_file(mm).to_bytes())
    assert (hour.from_s, hour.at_s) == (AT.timestamp() - 3600, AT.timestamp())


@pytest.mark.parametrize("mesh", ["51337000", "51337099", "52335000", "52340011"])
def test_grid_point_is_the_mesh_around_it(mesh: str) -> None:
    """Rows and columns as JIS X 0410 numbers them."""
    (field,) = read_fields(rain_file(rain(1)).but(north=48.0, west=118.0).to_bytes())
    lat, lon = mesh_center(mesh)
    row, column = (int(n[0]) for n in mesh_rows_and_columns(np.array([int(mesh)])))
    grid = field.grid

    assert 48 - (grid.north_row - row + 0.5) / 120 == pytest.approx(lat)
    assert 118 + (column - grid.west_column + 0.5) / 80 == pytest.approx(lon)


def test_whole_area_of_japan() -> None:
    """8,601,600 points, as JMA sends them."""
    levels = np.zeros((3360, 2560), dtype=np.uint8)
    levels[500:2800, 300:2200] = 1
    levels[1500:1600, 900:1000] = 77
    file = JmaFile([Layer(levels)], north=48.0, west=118.0)
    (field,) = read_fields(file.to_bytes())
    values = field.values()

    assert (field.grid.rows, field.grid.columns) == (3360, 2560)
    assert np.array_equal(np.isnan(values), levels == 0)
    assert (np.nanmin(values), np.nanmax(values)) == (0.0, 75.0)
    assert (values[1550, 950], values[1599, 1000]) == (75.0, 0.0)


def test_simple_packing_is_read_by_eccodes() -> None:
    """Files that other tools have cut are packed in another way."""
    mm = np.where(np.isnan(rain(2)), 1.5, rain(2))
    plain = eccodes.codes_new_from_message(rain_file(mm).but(template=0).to_bytes())
    eccodes.codes_set(plain, "packingType", "grid_simple")
    eccodes.codes_set(plain, "bitsPerValue", 16)
    eccodes.codes_set_values(plain, mm.ravel())
    (field,) = read_fields(eccodes.codes_get_message(plain))

    np.testing.assert_allclose(field.values(), mm, atol=0.01)


BAD = [
    ({"centre": 7}, "originating centre must be 34"),
    ({"template": 50_009}, "product definition template must be 0, 8 or 50008"),
    ({"steps": (1 / 24, 1 / 16)}, "grid must be third meshes of 30 x 45 seconds"),
    ({"north": 35.004}, "latitude must be the centre of a third mesh"),
    ({"bits": 12}, "section 5 must be of 8 or 16 bits"),
    ({"scale": 100}, "decimal scale factor must be from -3 to 3"),
    ({"table": tuple(reversed(RAIN_LEVELS))}, "values of the levels must be ascending"),
]


@pytest.mark.parametrize(("changes", "problem"), BAD)
def test_other_files_are_refused(changes: dict[str, object], problem: str) -> None:
    """With the field and its rule."""
    file = rain_file(rain(1)).but(**changes) if "bits" not in changes else None
    data = file.to_bytes() if file else _with_bits(12)

    with pytest.raises(FieldError, match=problem):
        [field.values() for field in read_fields(data)]


def _with_bits(bits: int) -> bytes:
    data = bytearray(rain_file(rain(1)).to_bytes())
    at = data.index(struct.pack(">IBIH", 17 + 2 * len(RAIN_LEVELS), 5, 7200, 200))
    data[at + 11] = bits
    return bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused(share: float) -> None:
    """At any length."""
    data = rain_file(rain(1)).to_bytes()

    with pytest.raises(FieldError, match=r"(file|section \d) must be"):
        list(read_fields(data[: int(len(data) * share)]))


@pytest.mark.parametrize("seed", range(6))
def test_damaged_bytes_never_give_another_error(seed: int) -> None:
    """Nor an endless loop, as in ecCodes; values stay within the table of levels.

    GRIB2 has no checksum: a changed level of the same run is not found.
    """
    data, pick = rain_file(rain(1)).to_bytes(), random.Random(seed)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(pick.choice([1, 2, 8])):
            damaged[pick.randrange(16, len(data))] = pick.randrange(256)
        try:
            for field in read_fields(bytes(damaged)):
                values = field.values()
                assert np.nanmax(values) <= 2**15
        except FieldError:
            refused += 1

    assert refused > 20


def test_run_lengths_that_overflow_are_refused() -> None:
    """A run of more digits than the area of Japan needs."""
    file = JmaFile([Layer(np.ones((40, 50), int))], table=INDEX_LEVELS, bits=8)
    data = file.to_bytes()
    at = data.rindex(b"7777")
    units = bytes([1, *[255] * 200])
    body = data[16 : data.rindex(struct.pack(">B", 7), 0, at) - 4] + section(7, units)
    message = (
        b"GRIB\xff\xff\x00\x02" + struct.pack(">Q", len(body) + 20) + body + b"7777"
    )

    with pytest.raises(FieldError, match="section 7 must be"):
        [field.values() for field in read_fields(message)]
