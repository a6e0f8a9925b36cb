// Names of readings in the page's language, by their unit and the last part of their name.
import { currentLanguage } from "./i18n";

// By unit, or by the last part of the name after a slash; Japanese and English.
const PARTS: Record<string, [string, string]> = {
  x: ["傾斜 X", "Tilt X"],
  y: ["傾斜 Y", "Tilt Y"],
  sigma: ["傾斜のノイズ", "Tilt noise"],
  temp: ["温度", "Temperature"],
  humidity: ["湿度", "Humidity"],
  pressure: ["気圧", "Air pressure"],
  refused: ["除外した接点信号", "Refused closures"],
};
const UNITS: Record<string, [string, string]> = {
  mm: ["変位", "Displacement"],
  deg: ["傾斜", "Tilt"],
  "/": ["体積含水率", "Water content"],
  hPa: ["間隙水圧", "Pore pressure"],
  Cel: ["温度", "Temperature"],
  "%RH": ["湿度", "Humidity"],
  count: ["振動回数", "Shocks"],
  m: ["水位", "Water level"],
  V: ["電圧", "Voltage"],
};
const NAMES: Record<string, [string, string]> = {
  rain: ["雨量", "Rain"],
  tilt: ["傾斜計", "Tilt meter"],
  displacement: ["伸縮計", "Extensometer"],
  extensometer: ["伸縮計", "Extensometer"],
  wire: ["ワイヤーセンサー", "Wire"],
  vibration: ["振動", "Vibration"],
  battery: ["電池電圧", "Battery voltage"],
  rssi: ["受信強度", "Signal strength"],
  "disk-free": ["ディスクの空き", "Free disk"],
  "under-voltage": ["電圧低下", "Under-voltage"],
  throttled: ["速度制限", "Throttled"],
  "life-used": ["記録媒体の消耗", "Wear of storage"],
};

const SIGNS: Record<string, string> = { "/": "m³/m³", deg: "°", Cel: "°C", "%RH": "%", count: "" };

// Unit as it is written for people; SenML's codes are for programs.
export function unitName(unit: string | null): string {
  return SIGNS[unit ?? ""] ?? unit ?? "";
}

export function sensorName(name: string, unit: string | null = null): string {
  const [sensor = "", part] = name.split(/\/(?=[^/]*$)/);
  const known = part === undefined ? (NAMES[name] ?? UNITS[unit ?? ""]) : (NAMES[part] ?? PARTS[part]);
  if (!known) return name;
  const word = known[currentLanguage() === "ja" ? 0 : 1];
  // A name that an installer gave says which of two sensors it is.
  const given = part === undefined ? name : sensor;
  const isUsual = given in NAMES;
  return isUsual ? word : `${word}（${given}）`;
}
