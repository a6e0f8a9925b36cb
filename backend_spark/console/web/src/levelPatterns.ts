// Official colours of the levels, each with a pattern of its own for who cannot tell
// the colours apart. The order of density is the order of the levels.

export const COLOURS: Record<number, string> = {
  0: "#d5dae0",
  1: "#ffffff",
  2: "rgb(242,231,0)",
  3: "rgb(255,40,0)",
  4: "rgb(170,0,170)",
  5: "rgb(12,0,12)",
  6: "#eceff2",
};

export const INKS: Record<number, string> = {
  0: "#8c97a3",
  1: "#ffffff",
  2: "#7d7600",
  3: "#ffd9d0",
  4: "#ffffff",
  5: "#ffffff",
  6: "#6b7785",
};

export const LOOKS = [5, 4, 3, 2, 1, 6, 0];
const SIZE = 16;

type Draw = (pen: CanvasRenderingContext2D) => void;

function strokes(...lines: [number, number, number, number][]): Draw {
  return (pen) => {
    pen.beginPath();
    for (const [x1, y1, x2, y2] of lines) {
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
    }
    pen.stroke();
  };
}

const RISING: [number, number, number, number][] = [[-4, 20, 20, -4], [-4, 4, 4, -4], [12, 20, 20, 12]];
const FALLING: [number, number, number, number][] = [[-4, -4, 20, 20], [12, -4, 20, 4], [-4, 12, 4, 20]];

const PATTERNS: Record<number, Draw> = {
  0: strokes([0, 4, 6, 4], [8, 12, 14, 12]),
  1: () => undefined,
  2: (pen) => {
    for (const [x, y] of [[4, 4], [12, 12]] as const) {
      pen.beginPath();
      pen.arc(x, y, 2, 0, 7);
      pen.fill();
    }
  },
  3: strokes(...RISING),
  4: strokes(...RISING, ...FALLING),
  5: strokes([0, 4, 16, 4], [0, 12, 16, 12], [4, 0, 4, 16], [12, 0, 12, 16]),
  6: strokes([5, 5, 11, 11], [11, 5, 5, 11]),
};

export function tile(look: number, background: boolean): ImageData {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  if (background) {
    pen.fillStyle = COLOURS[look] ?? "#fff";
    pen.fillRect(0, 0, SIZE, SIZE);
  }
  pen.strokeStyle = pen.fillStyle = INKS[look] ?? "#000";
  pen.lineWidth = look === 4 ? 1.2 : 1.6;
  PATTERNS[look]?.(pen);
  return pen.getImageData(0, 0, SIZE, SIZE);
}

// A gateway is a square, so that it is told from a node by its shape; a gone one is crossed.
export function square(state: string): ImageData {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 22;
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  pen.fillStyle = state === "well" ? "#17324d" : "#ffffff";
  pen.strokeStyle = state === "gone" ? "#c40000" : "#17324d";
  pen.lineWidth = 3;
  pen.fillRect(3, 3, 16, 16);
  pen.strokeRect(3, 3, 16, 16);
  if (state === "gone") strokes([3, 3, 19, 19], [19, 3, 3, 19])(pen);
  return pen.getImageData(0, 0, 22, 22);
}

const urls = new Map<number, string>();

// Colour and pattern as an image for styles.
export function look(level: number): string {
  const known = urls.get(level) ?? swatch(level, SIZE).toDataURL();
  urls.set(level, known);
  return `url(${known})`;
}

export function swatch(look: number, size = 22): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  canvas.className = "swatch";
  canvas.setAttribute("aria-hidden", "true");
  const pen = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = tile(look, true);
  for (let x = 0; x < size; x += SIZE) for (let y = 0; y < size; y += SIZE) pen.putImageData(image, x, y);
  return canvas;
}
