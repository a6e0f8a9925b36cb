// Bundles src/ into ../static, which the server serves and the wheel carries.
import { build } from "esbuild";
import { cp, mkdir, rm } from "node:fs/promises";

const out = new URL("../static/", import.meta.url).pathname;
const root = new URL("./", import.meta.url).pathname;

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: root,
  entryPoints: { app: "src/main.ts", style: "src/style.css", report: "src/report.css" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  splitting: true,
  target: "es2022",
  sourcemap: false,
  legalComments: "linked",
  external: ["data:*"],
  logLevel: "warning",
});
await cp(`${root}src/index.html`, `${out}index.html`);
await cp(`${root}src/icon.svg`, `${out}icon.svg`);
await cp(
  `${root}node_modules/maplibre-gl/dist/maplibre-gl-worker.mjs`,
  `${out}map-worker.mjs`,
);
