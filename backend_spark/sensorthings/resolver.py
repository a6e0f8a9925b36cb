"""Values of paths: properties of an entity, and of those that it is related to."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.catalogue import Catalogue
from backend_spark.sensorthings.entities import (
    ENTITY_SETS,
    OBSERVATIONS,
    EntitySet,
    Properties,
    Record,
)

MAX_VALUES: Final = 20_000
"""Entities that a path of one entity may lead to."""

MAX_RELATIONS: Final = 3
"""Relations on one path."""

ID_NAMES: Final = frozenset({"id", "@iot.id"})


@dataclass
class PathResolver:
    """Finds the values of paths for one entity.

    Attributes:
        entity_set: Set of the entity.
        record: What it is made of.
        catalogue: Nodes and series.
    """

    entity_set: EntitySet
    record: Record
    catalogue: Catalogue
    _described: dict[int, Properties] = field(default_factory=dict)

    def __call__(self, steps: tuple[str, ...]) -> Any:  # noqa: ANN401 - of any type
        """Value of a path; a list where it leads through several entities.

        Raises:
            StandardsRequestError: There is no such property.
        """
        records, entity_set, is_many = [self.record], self.entity_set, False
        for relations, step in enumerate(steps):
            relation = entity_set.relations.get(step)
            if relation is None:
                rest = steps[relations:]
                values = [self._property(entity_set, each, rest) for each in records]
                return values if is_many else next(iter(values), None)
            if relation.target == OBSERVATIONS or relations == MAX_RELATIONS:
                rule = f"at most {MAX_RELATIONS} relations, none of them Observations"
                raise StandardsRequestError("path", rule, "/".join(steps))
            found = (relation.find(self.catalogue, each) for each in records)
            records = _limited(each for many in found for each in many)
            entity_set = ENTITY_SETS[relation.target]
            is_many = is_many or relation.is_many
        rule = "one that ends with a property"
        raise StandardsRequestError("path", rule, "/".join(steps))

    def _property(
        self, entity_set: EntitySet, record: Record, steps: tuple[str, ...]
    ) -> Any:  # noqa: ANN401 - of any type
        if steps[0] in ID_NAMES:
            return entity_set.identify(record)
        check_property(entity_set, steps[0], "path")
        key = id(record)
        if key not in self._described:
            self._described[key] = entity_set.describe(record)
        value: Any = self._described[key].get(steps[0])
        for step in steps[1:]:
            value = value.get(step) if isinstance(value, dict) else None
        return value


def _limited(records: Iterable[Record]) -> list[Record]:
    found = []
    for each in records:
        found.append(each)
        if len(found) > MAX_VALUES:
            rule = f"paths to at most {MAX_VALUES} entities"
            raise StandardsRequestError("$filter", rule, "a path to more")
    return found


def check_property(entity_set: EntitySet, name: str, option: str) -> None:
    """Check that entities of a set have a property.

    Raises:
        StandardsRequestError: They do not.
    """
    if name not in entity_set.names and name not in ID_NAMES:
        known = ", ".join([*entity_set.names, *entity_set.relations])
        rule = f"a property of {entity_set.name} ({known})"
        raise StandardsRequestError(option, rule, name)
