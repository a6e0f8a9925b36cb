// Layer of the cells on the map, drawn by WebGL directly: 10,000 polygons need not pass
// through the map's worker, and a change of levels is one byte per cell.
import type * as maplibre from "maplibre-gl";

import { COLOURS, LEVELS_BY_SEVERITY, patternTile } from "./badges";

const SIZE = 16;
const EDGES_ZOOM = 9;
const PATTERNS_ZOOM = 9.5;
const CORNERS = 4;

// Four vertices of each cell. Drawing instances would cost more: software draws them singly.
const TRIANGLES = [0, 1, 2, 0, 2, 3];
const EDGES = [0, 1, 1, 2, 2, 3, 3, 0];

const VERTEX = `#version 300 es
uniform mat4 u_matrix;
in vec2 a_place;
in uint a_level;
flat out uint v_level;
void main() {
  gl_Position = u_matrix * vec4(a_place, 0.0, 1.0);
  v_level = a_level;
}`;

// The table has a row of ${SIZE} pixels for each level: its pattern, then its colour.
const FRAGMENT = `#version 300 es
precision highp float;
uniform sampler2D u_levels;
uniform vec2 u_anchor;
uniform float u_ratio;
uniform bool u_edges;
uniform bool u_patterns;
flat in uint v_level;
out vec4 colour;
void main() {
  if (u_edges) {
    colour = vec4(0.49, 0.545, 0.6, 1.0) * 0.6;
    return;
  }
  int row = int(v_level) * ${SIZE};
  colour = texelFetch(u_levels, ivec2(${SIZE}, row), 0);
  if (!u_patterns) return;
  ivec2 at = ivec2(mod((gl_FragCoord.xy - u_anchor) / u_ratio, ${SIZE}.0));
  vec4 pattern = texelFetch(u_levels, ivec2(at.x, row + ${SIZE - 1} - at.y), 0);
  colour = pattern + colour * (1.0 - pattern.a);
}`;

interface Drawing {
  program: WebGLProgram;
  vertices: WebGLVertexArrayObject;
  places: WebGLBuffer;
  levels: WebGLBuffer;
  order: WebGLBuffer;
  table: WebGLTexture;
}

type Bounds = [west: number, south: number, east: number, north: number];

export class CellLayer implements maplibre.CustomLayerInterface {
  readonly id = "cells";
  readonly type = "custom" as const;
  private map: maplibre.Map | null = null;
  private drawing: Drawing | null = null;
  // Web Mercator, the world from 0 to 1; corners from here, since 32 bits hold metres only.
  private origin: [number, number] = [0, 0];
  private corners = new Float32Array();
  private vertexLevels = new Uint8Array();
  private isMoved = false;
  private isChanged = false;

  constructor(private readonly hasGround: boolean) {}

  // Corners in microdegrees, longitude first, four of each cell.
  setCells(corners: number[][]): void {
    this.corners = new Float32Array(corners.length * CORNERS * 2);
    const [x, y] = corners[0] ?? [];
    this.origin = mercator(x ?? 0, y ?? 0);
    let at = 0;
    for (const corner of corners) {
      for (let next = 0; next < CORNERS * 2; next += 2) {
        const [east, south] = mercator(corner[next] ?? 0, corner[next + 1] ?? 0);
        this.corners[at++] = east - this.origin[0];
        this.corners[at++] = south - this.origin[1];
      }
    }
    this.isMoved = true;
  }

  // Level of each cell; 0 where there is none yet.
  setLevels(levels: number[]): void {
    this.vertexLevels = new Uint8Array(this.cells * CORNERS);
    for (let at = 0; at < this.vertexLevels.length; at++) this.vertexLevels[at] = levels[Math.floor(at / CORNERS)] ?? 0;
    this.isChanged = true;
    this.map?.triggerRepaint();
  }

  private get cells(): number {
    return this.corners.length / (CORNERS * 2);
  }

  // Number of the cell at a place; -1 without one.
  at(place: maplibre.LngLat): number {
    const [east, south] = mercator(place.lng * 1e6, place.lat * 1e6);
    const x = east - this.origin[0];
    const y = south - this.origin[1];
    for (let cell = 0; cell < this.cells; cell++) if (this.isInside(cell * CORNERS * 2, x, y)) return cell;
    return -1;
  }

  // Cells are convex: a place inside is on the same side of all edges.
  private isInside(first: number, x: number, y: number): boolean {
    let sides = 0;
    for (let at = 0; at < CORNERS * 2; at += 2) {
      const next = first + ((at + 2) % (CORNERS * 2));
      const [x1, y1] = [this.corners[first + at] ?? 0, this.corners[first + at + 1] ?? 0];
      const [x2, y2] = [this.corners[next] ?? 0, this.corners[next + 1] ?? 0];
      sides += Math.sign((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1));
    }
    return Math.abs(sides) === CORNERS;
  }

  // The context may be a new one.
  onAdd(map: maplibre.Map): void {
    this.map = map;
    this.drawing = null;
  }

  render(gl: WebGL2RenderingContext, { defaultProjectionData }: maplibre.CustomRenderMethodInput): void {
    const { map } = this;
    if (!map) return;
    const drawing = (this.drawing ??= this.prepare(gl));
    gl.bindVertexArray(drawing.vertices);
    this.upload(gl, drawing);
    const matrix = moved(defaultProjectionData.mainMatrix, this.origin);
    const at = (name: string) => gl.getUniformLocation(drawing.program, name);
    const zoom = map.getZoom();
    const ratio = map.getPixelRatio();
    gl.useProgram(drawing.program);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, drawing.table);
    gl.uniform1i(at("u_levels"), 0);
    gl.uniformMatrix4fv(at("u_matrix"), false, matrix);
    gl.uniform1f(at("u_ratio"), ratio);
    // Patterns move with the map.
    const onScreen = (axis: number, pixels: number) => ((((matrix[12 + axis] ?? 0) / (matrix[15] ?? 1) + 1) / 2) * pixels) % (SIZE * ratio);
    gl.uniform2f(at("u_anchor"), onScreen(0, gl.drawingBufferWidth), onScreen(1, gl.drawingBufferHeight));
    gl.uniform1i(at("u_patterns"), Number(zoom >= PATTERNS_ZOOM));
    gl.uniform1i(at("u_edges"), 0);
    gl.drawElements(gl.TRIANGLES, this.cells * TRIANGLES.length, gl.UNSIGNED_INT, 0);
    if (zoom >= EDGES_ZOOM) {
      gl.uniform1i(at("u_edges"), 1);
      gl.drawElements(gl.LINES, this.cells * EDGES.length, gl.UNSIGNED_INT, this.cells * TRIANGLES.length * 4);
    }
    gl.bindVertexArray(null);
  }

  // Not in onAdd, where the map relies on the state of its context.
  private prepare(gl: WebGL2RenderingContext): Drawing {
    const vertices = gl.createVertexArray();
    gl.bindVertexArray(vertices);
    const program = link(gl);
    const places = buffer(gl);
    const place = gl.getAttribLocation(program, "a_place");
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, 2, gl.FLOAT, false, 0, 0);
    const levels = buffer(gl);
    const at = gl.getAttribLocation(program, "a_level");
    gl.enableVertexAttribArray(at);
    gl.vertexAttribIPointer(at, 1, gl.UNSIGNED_BYTE, 0, 0);
    const order = gl.createBuffer();
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, order);
    this.isMoved = this.isChanged = true;
    return { program, vertices, places, levels, order, table: levelTable(gl, this.hasGround) };
  }

  private upload(gl: WebGL2RenderingContext, { places, levels, order }: Drawing): void {
    if (this.isMoved) {
      gl.bindBuffer(gl.ARRAY_BUFFER, places);
      gl.bufferData(gl.ARRAY_BUFFER, this.corners, gl.STATIC_DRAW);
      const vertices = new Uint32Array(this.cells * (TRIANGLES.length + EDGES.length));
      let next = 0;
      for (const shape of [TRIANGLES, EDGES]) for (let cell = 0; cell < this.cells; cell++) for (const at of shape) vertices[next++] = cell * CORNERS + at;
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, order);
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, vertices, gl.STATIC_DRAW);
    }
    if (this.isChanged) {
      gl.bindBuffer(gl.ARRAY_BUFFER, levels);
      gl.bufferData(gl.ARRAY_BUFFER, this.vertexLevels, gl.DYNAMIC_DRAW);
    }
    this.isMoved = this.isChanged = false;
  }
}

// Bounds of cells in degrees; null without any.
export function boundsOf(corners: number[][]): Bounds | null {
  const found: Bounds = [Infinity, Infinity, -Infinity, -Infinity];
  for (const corner of corners) {
    for (let at = 0; at + 1 < corner.length; at += 2) {
      const x = (corner[at] ?? 0) / 1e6;
      const y = (corner[at + 1] ?? 0) / 1e6;
      if (x < found[0]) found[0] = x;
      if (y < found[1]) found[1] = y;
      if (x > found[2]) found[2] = x;
      if (y > found[3]) found[3] = y;
    }
  }
  return corners.length ? found : null;
}

// Place in microdegrees on the square of the world, from 0 to 1.
function mercator(x: number, y: number): [number, number] {
  const radians = (y / 1e6) * (Math.PI / 180);
  return [x / 360e6 + 0.5, 0.5 - Math.log(Math.tan(Math.PI / 4 + radians / 2)) / (2 * Math.PI)];
}

// The matrix for places from an origin on; multiplied in 64 bits.
function moved(matrix: ArrayLike<number>, [x, y]: [number, number]): Float32Array {
  const found = Float32Array.from(matrix);
  for (let row = 0; row < 4; row++) found[12 + row] = (matrix[row] ?? 0) * x + (matrix[4 + row] ?? 0) * y + (matrix[12 + row] ?? 0);
  return found;
}

function buffer(gl: WebGL2RenderingContext): WebGLBuffer {
  const made = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, made);
  return made;
}

function link(gl: WebGL2RenderingContext): WebGLProgram {
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]] as const) {
    const shader = gl.createShader(kind);
    if (!shader) continue;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return program;
}

function levelTable(gl: WebGL2RenderingContext, hasGround: boolean): WebGLTexture {
  const canvas = document.createElement("canvas");
  canvas.width = SIZE + 1;
  canvas.height = SIZE * (Math.max(...LEVELS_BY_SEVERITY) + 1);
  const context = canvas.getContext("2d", { willReadFrequently: true }) as CanvasRenderingContext2D;
  for (const level of LEVELS_BY_SEVERITY) {
    context.putImageData(patternTile(level, false), 0, level * SIZE);
    context.fillStyle = COLOURS[level] ?? "#fff";
    context.globalAlpha = levelOpacity(hasGround, level);
    context.fillRect(SIZE, level * SIZE, 1, SIZE);
  }
  const table = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, table);
  gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, true);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, canvas);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
  gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
  return table;
}

// Levels stay the strongest colours above a ground. Calm cells show the landscape.
function levelOpacity(ground: boolean, level: number): number {
  if (!ground) return 0.92;
  if (level === 1) return 0.35;
  return [0, 6, 11].includes(level) ? 0.6 : 0.88;
}
