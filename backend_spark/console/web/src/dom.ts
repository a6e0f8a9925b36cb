// DOM elements built without HTML text, so that names of nodes cannot inject code; tables of them.

export type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | EventListener | undefined>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = String(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((c): c is Node | string => c !== null && c !== undefined && c !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(
  tag: string,
  props: Record<string, string | number> = {},
  ...children: Child[]
): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, String(value));
  element.append(...children.filter((c): c is Node | string => !!c));
  return element;
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(...children.filter((c): c is Node | string => !!c));
}

// A table becomes cards on a narrow screen, where each cell states its column.
interface Table {
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
