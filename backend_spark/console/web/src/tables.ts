// Tables that become cards on a narrow screen, where each cell states its column.
import { el, replace } from "./dom";

export interface Table {
  box: HTMLTableElement;
  fill: (rows: HTMLTableRowElement[]) => void;
}

export function table(style: string, columns: string[], rows: HTMLTableRowElement[] = []): Table {
  const body = el("tbody", {});
  const fill = (wanted: HTMLTableRowElement[]) => {
    for (const row of wanted) [...row.cells].forEach((cell, at) => (cell.dataset.column = columns[at] ?? ""));
    replace(body, ...wanted);
  };
  fill(rows);
  const head = el("tr", {}, ...columns.map((words) => el("th", { scope: "col" }, words)));
  return { box: el("table", { class: `list cards ${style}` }, el("thead", {}, head), body), fill };
}
