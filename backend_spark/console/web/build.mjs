// Bundles src/ into ../static, which the server serves and the wheel carries.
import { build } from "esbuild";
import { cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";

const out = new URL("../static/", import.meta.url).pathname;
const root = new URL("./", import.meta.url).pathname;

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
const { metafile } = await build({
  absWorkingDir: root,
  entryPoints: { app: "src/main.ts", style: "src/style.css", report: "src/report.css" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  splitting: true,
  target: "es2022",
  charset: "utf8",
  sourcemap: false,
  legalComments: "linked",
  external: ["data:*"],
  logLevel: "warning",
  chunkNames: "[name]-[hash]",
  metafile: true,
});
// The map's library is fetched and parsed beside the page's own code, not after it.
const library = Object.keys(metafile.outputs).filter((name) => name.includes("/maplibre-gl-") && name.endsWith(".js"));
const preloads = library.map((name) => `\n    <link rel="modulepreload" href="static/${name.split("/").pop()}" />`);
const page = await readFile(`${root}src/index.html`, "utf8");
await writeFile(`${out}index.html`, page.replace("</script>", `</script>${preloads.join("")}`));
await cp(`${root}src/icon.svg`, `${out}icon.svg`);
await cp(
  `${root}node_modules/maplibre-gl/dist/maplibre-gl-worker.mjs`,
  `${out}map-worker.mjs`,
);
