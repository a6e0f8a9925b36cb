"""SensorThings service: answers to requests for entities, within limits of work.

A page that is not full when the time of an answer is over ends early, with a link to
the next one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from backend_spark.errors import StandardsRequestError
from backend_spark.sensorthings.catalogue import Catalogue, CatalogueReader, Series
from backend_spark.sensorthings.entities import (
    ENTITY_SETS,
    ID_NAMES,
    OBSERVATIONS,
    EntitySet,
    PathResolver,
    Record,
    check_property,
)
from backend_spark.sensorthings.expressions import compile_expression, holds
from backend_spark.sensorthings.readings import (
    COLUMNS,
    ReadingFilter,
    ReadingScope,
    cell_filter,
    reading_query,
    series_filter,
)
from backend_spark.sensorthings.request_syntax import (
    PathSegment,
    QueryOptions,
    SortKey,
    entity_link,
    parse_path,
)
from backend_spark.tables.bounded_answers import (
    ANSWER_S,
    AnswerBudget,
    AnswerLimits,
    TimeWalk,
)
from backend_spark.tables.reader import DeltaTables, sql_literal
from backend_spark.tables.store import Folder

MAX_SKIP: Final = 10_000
"""Readings that ``$skip`` leaves out; links to next pages have no limit."""

_READING: Final = re.compile(r"([^/]*)/([^/]*)/([0-9]{1,18})/([0-9]{1,16})/(.*)")

Entity = dict[str, Any]


@dataclass(frozen=True)
class Collection:
    """Entities that a path names.

    Attributes:
        entity_set: Their set.
        records: What they are made of; None for readings.
        within: Which readings.
        link: Address of the collection.
    """

    entity_set: EntitySet
    records: Iterable[Record] | None
    within: ReadingFilter
    link: str


class SensorThingsService:
    """Answers requests; for several threads.

    Args:
        tables: Folder of the tables.
        clock: Unix time.
        monotonic: Clock for the limits of time.
        limits: Of the work for answers.
    """

    def __init__(
        self,
        tables: Folder,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        limits: AnswerLimits,
    ) -> None:
        self._tables = DeltaTables(tables)
        self._catalogue = CatalogueReader(self._tables.path("silver"), monotonic)
        self._clock = clock
        self._limits = limits

    def answer(self, base: str, path: str, options: QueryOptions) -> Any:  # noqa: ANN401 - JSON, or a bare value
        """Answer to a request.

        Args:
            base: Address of the service.
            path: Resource path.
            options: Query options.

        Raises:
            StandardsRequestError: The request is not valid or asks for too much.
        """
        with self._limits.turn() as budget:
            answer = EntityAnswer(
                base,
                self._tables,
                self._catalogue.read(),
                datetime.fromtimestamp(self._clock(), UTC),
                budget,
            )
            return answer.resolve(parse_path(path), options)


@dataclass
class EntityAnswer:
    """One answer.

    Attributes:
        base: Address of the service.
        tables: The tables.
        catalogue: Nodes and series.
        now: The present.
        budget: Work that it may still do.
    """

    base: str
    tables: DeltaTables
    catalogue: Catalogue
    now: datetime
    budget: AnswerBudget

    def resolve(self, path: Sequence[PathSegment], options: QueryOptions) -> Any:  # noqa: ANN401 - JSON
        """What a path names: a collection, an entity or a property."""
        first, rest = path[0], path[1:]
        if first.name not in ENTITY_SETS:
            raise _missing(first.name)
        entity_set = ENTITY_SETS[first.name]
        if first.key is None:
            everything = Collection(
                entity_set,
                entity_set.records(self.catalogue).values(),
                ReadingFilter(),
                f"{self.base}/{first.name}",
            )
            return self._collection(everything, rest, options)
        record = self._find(entity_set, first.key)
        return self._below(entity_set, record, rest, options)

    def _below(
        self,
        entity_set: EntitySet,
        record: Record,
        rest: Sequence[PathSegment],
        options: QueryOptions,
    ) -> Any:  # noqa: ANN401 - JSON
        """What the rest of a path names, seen from an entity."""
        if not rest:
            return self._entity(entity_set, record, options)
        step = rest[0]
        if step.name == "$ref":
            return {"@iot.selfLink": self._link(entity_set, record)}
        if step.name not in entity_set.relations:
            return _property(entity_set, record, rest)
        related = self._related(entity_set, record, step.name)
        relation = entity_set.relations[step.name]
        if relation.is_many and step.key is None:
            return self._collection(related, rest[1:], options)
        target = related.entity_set
        if relation.is_many:
            one = self._find(target, step.key or "")
            if related.records is not None and one not in list(related.records):
                raise _missing(step.key or "")
        else:
            one = next(iter(related.records or ()), None)
        if one is None:
            raise _missing(step.name)
        return self._below(target, one, rest[1:], options)

    def _related(self, entity_set: EntitySet, record: Record, name: str) -> Collection:
        relation = entity_set.relations[name]
        target = ENTITY_SETS[relation.target]
        link = f"{self._link(entity_set, record)}/{name}"
        if target.name != OBSERVATIONS:
            found = relation.find(self.catalogue, record)
            return Collection(target, found, ReadingFilter(), link)
        is_series = isinstance(record, Series)
        within = series_filter([record]) if is_series else cell_filter(record)
        return Collection(target, None, within, link)

    def _find(self, entity_set: EntitySet, key: str) -> Record:
        if entity_set.name == OBSERVATIONS:
            return self._find_reading(key)
        record = entity_set.records(self.catalogue).get(key)
        if record is None:
            raise _missing(key)
        return record

    def _find_reading(self, key: str) -> Record:
        match = _READING.fullmatch(key)
        if match is None:
            raise _missing(key)
        node, boot, seq, at_us, name = match.groups()
        conditions = [
            f"{column} = {sql_literal(value)}"
            for column, value in (("node", node), ("boot", boot), ("name", name))
        ]
        conditions += [f"seq = {seq}", f"at = to_timestamp_micros({at_us})"]
        rows = self.tables.select("silver", COLUMNS, conditions, "seq", (1, 0))
        if not rows.num_rows:
            raise _missing(key)
        return rows.to_pylist()[0]

    def _collection(
        self, found: Collection, rest: Sequence[PathSegment], options: QueryOptions
    ) -> Entity:
        if rest and rest[0].name != "$ref":
            raise _missing(rest[0].name)
        if rest:
            found = replace(found, link=f"{found.link}/$ref")
            options = replace(options, select=("@iot.selfLink",), expand={})
        page = self._page(found, options)
        if not page["value"] and "@iot.nextLink" in page:
            # Clients take an empty page for the last one.
            rule = f"narrower: nothing was found in {ANSWER_S:.0f} s"
            remedy = "limit phenomenonTime, or ask for one Datastream"
            raise StandardsRequestError("query", rule, "one of all times", remedy)
        return page

    def _page(self, found: Collection, options: QueryOptions) -> Entity:
        """One page of a collection."""
        _check_options(found.entity_set, options)
        if found.entity_set.name == OBSERVATIONS:
            return self._readings(found, options)
        records = self._selected(found, options)
        page: Entity = {}
        if options.count:
            page["@iot.count"] = len(records)
        value: list[Entity] = []
        page["value"] = value
        for record in records[options.skip : options.skip + options.top]:
            if value and self.budget.is_over():
                break
            value.append(self._entity(found.entity_set, record, options))
        end = options.skip + len(value)
        if value and end < len(records):
            page["@iot.nextLink"] = _next_link(found.link, options, "$skip", f"{end}")
        return page

    def _selected(self, found: Collection, options: QueryOptions) -> list[Record]:
        """Records that the filter accepts, in the order of the request."""
        records = list(found.records or ())
        if options.condition is not None:
            evaluate = compile_expression(options.condition, self.now)
            records = [
                record
                for record in self._in_time(records)
                if holds(evaluate(self._resolver(found.entity_set, record)))
            ]
        for key in reversed(options.order):
            records = self._sorted(found.entity_set, records, key)
        return records

    def _sorted(
        self, entity_set: EntitySet, records: list[Record], key: SortKey
    ) -> list[Record]:
        evaluate = compile_expression(key.expression, self.now)
        values = [
            _sortable(evaluate(self._resolver(entity_set, record)))
            for record in self._in_time(records)
        ]
        order = sorted(range(len(records)), key=values.__getitem__)
        if key.is_descending:
            order.sort(key=values.__getitem__, reverse=True)
        return [records[at] for at in order]

    def _in_time(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records, until the time is over.

        Raises:
            StandardsRequestError: It is over.
        """
        for number, record in enumerate(records):
            if self.budget.is_over():
                rule = f"simpler: it took more than {ANSWER_S:.0f} s"
                raise StandardsRequestError("query", rule, f"{number} entities")
            yield record

    def _resolver(self, entity_set: EntitySet, record: Record) -> PathResolver:
        return PathResolver(entity_set, record, self.catalogue)

    def _readings(self, found: Collection, options: QueryOptions) -> Entity:
        """One page of readings."""
        scope = ReadingScope(self.catalogue, self.now, self._in_time)
        query = reading_query(options.condition, found.within, scope, options.order)
        if options.skip > MAX_SKIP:
            rule, remedy = (
                f"at most {MAX_SKIP} for Observations",
                "follow @iot.nextLink",
            )
            raise StandardsRequestError("$skip", rule, options.skip, remedy)
        walk = TimeWalk(self.tables, self.budget.is_over)
        page: Entity = {"@iot.count": walk.count(query)} if options.count else {}
        page["value"] = value = []
        if not options.top:
            return page
        limit = max(1, min(options.top, self.budget.entities))
        rows = walk.read_page(query, limit, options.skip, options.token)
        value += [self._entity(found.entity_set, row, options) for row in rows.rows]
        if rows.end is not None:
            page["@iot.nextLink"] = _next_link(
                found.link, options, "$skiptoken", f"{rows.end}"
            )
        return page

    def _entity(
        self, entity_set: EntitySet, record: Record, options: QueryOptions
    ) -> Entity:
        """An entity with its links, and with what is expanded."""
        self.budget.entities -= 1
        key = entity_set.identify(record)
        link = entity_link(self.base, entity_set.name, key)
        entity: Entity = {"@iot.id": key, "@iot.selfLink": link}
        entity |= entity_set.describe(record)
        for name in entity_set.relations:
            entity[f"{name}@iot.navigationLink"] = f"{link}/{name}"
        if options.select:
            entity = _only(entity, options.select)
        for name, inner in options.expand.items():
            entity |= self._expanded(entity_set, record, name, inner)
        return entity

    def _expanded(
        self,
        entity_set: EntitySet,
        record: Record,
        name: str,
        options: QueryOptions,
    ) -> Entity:
        related = self._related(entity_set, record, name)
        if not entity_set.relations[name].is_many:
            _check_options(related.entity_set, options)
            one = next(iter(related.records or ()), None)
            entity = one and self._entity(related.entity_set, one, options)
            return {name: entity}
        page = self._inner_page(related, options)
        keys = {"@iot.count": f"{name}@iot.count", "value": name}
        keys["@iot.nextLink"] = f"{name}@iot.nextLink"
        return {keys[key]: value for key, value in page.items()}

    def _inner_page(self, found: Collection, options: QueryOptions) -> Entity:
        """A page inside of an entity: only a link to it where the work is used up."""
        if found.records is None and self.budget.is_over():
            query = urlencode(options.pairs(), safe=_SAFE, quote_via=quote)
            return {"value": [], "@iot.nextLink": f"{found.link}?{query}".rstrip("?")}
        return self._page(found, options)

    def _link(self, entity_set: EntitySet, record: Record) -> str:
        return entity_link(self.base, entity_set.name, entity_set.identify(record))


_SAFE: Final = "$,;()'/=:@"


def _next_link(link: str, options: QueryOptions, name: str, value: str) -> str:
    """Address of the next page: the same options, from another place on."""
    given = [p for p in options.pairs() if p[0] not in {"$skip", "$skiptoken"}]
    query = urlencode([*given, (name, value)], safe=_SAFE, quote_via=quote)
    return f"{link}?{query}"


def _check_options(entity_set: EntitySet, options: QueryOptions) -> None:
    """Check names that the options use.

    Raises:
        StandardsRequestError: The entities have no such property or relation.
    """
    for name in options.expand:
        if name not in entity_set.relations:
            known = ", ".join(entity_set.relations)
            rule = f"a relation of {entity_set.name} ({known})"
            raise StandardsRequestError("$expand", rule, name)
    for name in options.select:
        if name not in entity_set.relations and not name.startswith("@iot."):
            check_property(entity_set, name.partition("/")[0], "$select")


def _only(entity: Entity, select: Sequence[str]) -> Entity:
    """The selected properties of an entity."""
    wanted = {
        "@iot.id" if name in ID_NAMES else name.partition("/")[0] for name in select
    }
    wanted |= {f"{name}@iot.navigationLink" for name in select}
    return {name: value for name, value in entity.items() if name in wanted}


@dataclass(frozen=True)
class BareValue:
    """A value that is the whole answer, without a name.

    Attributes:
        value: Text, number or object.
    """

    value: Any


def _property(
    entity_set: EntitySet, record: Record, rest: Sequence[PathSegment]
) -> Any:  # noqa: ANN401 - JSON, or a bare value
    """A property that a path names."""
    name, *more = (step.name for step in rest)
    if name not in entity_set.names or len(more) > 1 or more not in ([], ["$value"]):
        raise _missing(name)
    value = entity_set.describe(record).get(name)
    return BareValue(value) if more else {name: value}


def _sortable(value: object) -> tuple[int, Any]:
    """A key by which values of several types can be sorted; null comes first."""
    if isinstance(value, list):
        value = next(iter(value), None)
    if isinstance(value, bool | int | float):
        return 1, float(value)
    if isinstance(value, datetime):
        return 2, value
    return (3, str(value)) if value is not None else (0, 0)


def _missing(name: str) -> StandardsRequestError:
    return StandardsRequestError("path", "that of an entity", name, status=404)
