// Links to the rows of the last week before a time, as CSV and Parquet.
import { el } from "./dom";
import { t } from "./i18n";

const WEEK_S = 7 * 86400;

export function weekLinks(table: "levels" | "silver", place: { cell: string } | { node: string }, atS: number): HTMLElement {
  const end = Math.ceil(atS / 600) * 600;
  const items = (["csv", "parquet"] as const).flatMap((form) =>
    (["JST", "UTC"] as const).map((zone) => {
      const query = new URLSearchParams({ table, ...place, from_s: String(end - WEEK_S), to_s: String(end), zone });
      return el("li", {}, el("a", { href: `api/download/rows.${form}?${query}`, download: "", "data-rows": `${form}-${zone}` }, `${form === "csv" ? "CSV" : "Parquet"}${t(zone === "JST" ? "inJapanTime" : "inUtc")}`));
    }),
  );
  return el("div", {}, el("h3", {}, t("lastWeek")), el("ul", { class: "files" }, ...items));
}
