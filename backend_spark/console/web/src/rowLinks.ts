// Links to the rows of a range of time, as CSV and Parquet, in Japan time and UTC.
import { el } from "./dom";
import { t } from "./i18n";

const WEEK_S = 7 * 86400;

export interface Rows {
  table: "levels" | "silver" | "sensors";
  cell?: string;
  nodes?: readonly string[];
  fromS: number;
  toS: number;
}

export function rowLinks(title: string, rows: Rows): HTMLElement {
  const items = (["csv", "parquet"] as const).flatMap((form) =>
    (["JST", "UTC"] as const).map((zone) => {
      const query = new URLSearchParams({ table: rows.table, from_s: String(rows.fromS), to_s: String(rows.toS), zone });
      if (rows.cell) query.set("cell", rows.cell);
      for (const node of rows.nodes ?? []) query.append("node", node);
      return el("li", {}, el("a", { href: `api/download/rows.${form}?${query}`, download: "", "data-rows": `${form}-${zone}` }, `${form === "csv" ? "CSV" : "Parquet"}${t(zone === "JST" ? "inJapanTime" : "inUtc")}`));
    }),
  );
  return el("div", {}, el("h3", {}, title), el("ul", { class: "files" }, ...items));
}

// Links to the rows of the last week before a time.
export function weekLinks(table: "levels" | "silver", place: { cell: string } | { node: string }, atS: number): HTMLElement {
  const toS = Math.ceil(atS / 600) * 600;
  const where = "cell" in place ? place : { nodes: [place.node] };
  return rowLinks(t("lastWeek"), { table, ...where, fromS: toS - WEEK_S, toS });
}
