// Translation catalogue in Japanese and English; formats of times and durations.

export type Language = "ja" | "en";

const TEXTS = {
  title: ["土砂災害 監視コンソール", "Landslide console"],
  map: ["地図", "Map"],
  health: ["観測点の状態", "Nodes"],
  thresholds: ["基準値", "Thresholds"],
  reviews: ["観測値の確認", "Review"],
  skill: ["精度の検証", "Skill"],
  report: ["報告書", "Report"],
  downloads: ["書き出し", "Downloads"],
  capDraft: ["CAP 案（XML）", "CAP draft (XML)"],
  capMessages: ["CAP 電文の案", "CAP messages"],
  capHint: ["現在のレベルから案（Draft）を作成し、フィードに載せます。発令するかどうかは市町村が判断します。", "Makes drafts of the present levels for the feed. Whether to issue anything is for the municipality to decide."],
  capAlert: ["案を作成", "Make a draft"],
  capUpdate: ["現在のレベルで更新", "Update with the present levels"],
  capCancel: ["取消", "Cancel it"],
  capDraftStatus: ["案", "Draft"],
  capExerciseStatus: ["訓練", "Exercise"],
  zoomIn: ["地図を拡大", "Zoom in"],
  zoomOut: ["地図を縮小", "Zoom out"],
  capAlertName: ["新規の案", "New draft"],
  capUpdateName: ["更新の案", "Draft of an update"],
  capCancelName: ["取消の案", "Draft of a cancellation"],
  capCancelAsk: ["有効な案を取り消しますか？", "Cancel the draft in force?"],
  capChanged: ["表示後にほかの職員が案を作成したため、実行していません。内容を確認してください。", "Not done: somebody else has made a draft since. Look at it first."],
  capNoLevel: ["レベル2相当以上の区画がないため、案を作成できません", "No cell has level 2 or above, so no draft can be made"],
  capNoUpdate: ["レベル2相当以上の区画がないため、更新できません。「取消」で有効な案を取り消してください", "No cell has level 2 or above, so there is nothing to update: cancel the draft in force"],
  capNoJudgement: ["判定できている区画がないため、案を作成できません", "No cell is judged at present, so no draft can be made"],
  capNone: ["有効な案はありません。", "No draft is in force."],
  capInForce: ["有効な案：{id}", "In force: {id}"],
  lastWeek: ["7日間のデータ", "Data of 7 days"],
  inJapanTime: ["（日本時間）", " (Japan time)"],
  inUtc: ["（UTC）", " (UTC)"],
  capFeed: ["フィード（Atom）", "Feed (Atom)"],
  geojson: ["区画（GeoJSON）", "Cells (GeoJSON)"],
  login: ["ログイン", "Log in"],
  logout: ["ログアウト", "Log out"],
  name: ["名前", "Name"],
  password: ["パスワード", "Password"],
  wrongPassword: ["名前かパスワードが違います", "Name or password is wrong"],
  code: ["認証コード（認証アプリの6桁の数字）", "Code (six digits of the authenticator app)"],
  codeNeeded: ["認証アプリに表示されている認証コードを入力してください", "Enter the code that the authenticator app shows"],
  wrongCode: ["名前、パスワード、認証コードのいずれかが違うか、認証コードが使用済みです", "Name, password or code is wrong, or the code was used before"],
  tooManyTries: ["試した回数が多すぎます。{s} 秒待ってください", "Too many tries: wait {s} s"],
  signInBy: ["{name} でログイン", "Log in with {name}"],
  signInAway: ["認証サーバーに接続できません。このコンソールのアカウントでログインしてください", "The identity provider does not answer: log in with an account of this console"],
  signInRefused: ["認証サーバーがログインを認めませんでした", "The identity provider refused the login"],
  signInLate: ["ログインの手続きが時間切れか、別の画面で始まったものです。もう一度ログインしてください", "The login took too long or began elsewhere: log in again"],
  signInInvalid: ["認証サーバーの応答が正しくありません。システム担当者に連絡してください", "The identity provider's answer is not valid: ask the administrator"],
  signInName: ["この利用者名は使えません。システム担当者に連絡してください", "This user name cannot be used: ask the administrator"],
  signInRole: ["このコンソールを使う権限がありません。システム担当者に連絡してください", "You have no role in this console: ask the administrator"],
  signInFull: ["サーバーのディスクに空きがなく、ログインを記録できないため、ログインできません。コンソールのフォルダー（backend.data の console）のディスクの空きを増やしてから、もう一度ログインしてください", "You are not logged in: the server's disk is full, and a login must be recorded. Free space on the disk of the console's folder (console in backend.data), then log in again"],
  cannotSave: ["サーバーのディスクに空きがなく、保存できません。{folder} のディスクの空きを増やしてから、もう一度試してください", "Nothing can be saved: the server's disk is full. Free space on the disk of {folder}, then try again"],
  noSuchCell: ["この区画はありません", "There is no such cell"],
  exercise: ["訓練・再生", "EXERCISE"],
  exerciseLong: ["訓練・再生：最新のデータを現在として表示しています", "Exercise or replay: the newest data are shown as the present"],
  noData: ["データがありません", "No data yet"],
  stale: ["データが届いていません。最後のデータ：", "No data are arriving. Last data: "],
  unsaved: ["サーバーのディスクに空きがありません。事象は記録されず、通知は送られません", "The server's disk is full: no event is recorded and no notification is sent"],
  offline: ["サーバーにつながりません。表示は古い可能性があります", "The server cannot be reached: the display may be out of date"],
  unanswered: ["サーバーから応答がなく、実行されたかどうか分かりません。画面で結果を確認してから、必要ならもう一度操作してください", "No answer from the server: it is not known whether this was carried out. Check the result on the page before you try again"],
  otherUser: ["別の画面で {name} がログインしたため、実行していません。この画面を読み込み直してください", "Not done: {name} has logged in on another page of this browser. Load this page again"],
  noLink: ["接続なし", "No connection"],
  lostCall: ["サーバーにつながりません。新しい事象があっても、音も通知も出ません", "The server cannot be reached: new events make no sound and no notification"],
  sessionEnds: ["ログインの有効期限は {t} です。期限が切れると、新しい事象があっても、音もブラウザーの通知も出ません。それまでにログアウトして、ログインし直してください", "The session ends at {t}; from then on, new events make no sound and no notification of the browser. Log out and in again before"],
  sessionEnded: ["ログインの有効期限が切れました。次にログインするまで、新しい事象があっても、音もブラウザーの通知も出ません", "The session has ended. Until the next login, new events make no sound and no notification of the browser"],
  highest: ["いま最も高いレベル", "Highest level now"],
  cellsByLevel: ["区画数", "Cells by level"],
  attention: ["注意が必要な区画", "Cells that need attention"],
  noCriterionReached: ["基準に達した区画はありません", "No cell has reached a criterion"],
  missing: ["データなし", "No data"],
  noJudgement: ["判定なし", "No judgement"],
  level: ["レベル{n}相当", "Equivalent to level {n}"],
  held: ["判定不能（最終 レベル{n}相当）", "Unknown (last level {n})"],
  heldSince: ["判定不能（最終 レベル{n}相当 {t}、以後データなし）", "Unknown (last judged level {n} at {t}, no data since)"],
  heldMeaning: ["最後の判定を保持しています。現在の状況は分かりません", "The last judgement is held: the present state is not known"],
  someUnknown: ["基準に達したと判定された区画はありません。判定できない区画が{n}区画、途絶した観測点が{m}か所あります", "No judged cell has reached a criterion. Cells that cannot be judged: {n}; silent nodes: {m}"],
  back: ["一覧へ戻る", "Back to the list"],
  cell: ["区画", "Cell"],
  reasons: ["理由", "Reasons"],
  noReasons: ["基準に達していません", "No criterion is reached"],
  snake: ["スネークライン（60分雨量と土壌雨量指数）", "Snake line (60-minute rain against soil water index)"],
  swi: ["土壌雨量指数", "Soil water index"],
  swiUnit: ["土壌雨量指数 (mm)", "Soil water index (mm)"],
  r60: ["60分雨量", "60-minute rain"],
  r60Unit: ["60分雨量 (mm)", "60-min rain (mm)"],
  tilt: ["傾斜の速さ", "Tilt rate"],
  advisory: ["注意報基準", "Advisory"],
  warning: ["警報基準", "Warning"],
  critical: ["土砂災害発生危険基準線 (CL)", "Critical line"],
  criticalShort: ["危険 (CL)", "Critical"],
  notJudged: ["判定対象外", "not judged"],
  notJudgedHere: ["県はここではレベル{levels}を雨で判定しません", "The prefecture does not judge level {levels} by rain here"],
  special: ["特別警報基準", "Special warning"],
  past: ["これまで", "Past"],
  present: ["現在", "Now"],
  future_none: ["この後、雨なし", "No more rain"],
  future_same: ["1時間の平均が続く", "Last hour's mean continues"],
  future_given: ["予想", "Forecast"],
  futures: ["2時間後まで（仮定）", "Next 2 hours (assumed)"],
  assumed: ["基準値は仮の値です（県の基準表に置き換えてください）", "Criteria are assumed: replace them with the prefecture's table"],
  assumedLine: ["CL は仮の線です", "The critical line is assumed"],
  lowerBound: ["雨量に欠測があり、指数は実際より小さい可能性があります", "Rain data were missing: the index is a lower bound"],
  rainUnknown: ["雨量データが届いていません", "No rain data"],
  nodesHere: ["この区画の観測点", "Nodes in this cell"],
  noNodes: ["直近の観測点データなし", "No recent data from nodes"],
  lastSeen: ["最終受信", "Last seen"],
  now: ["現在へ", "Now"],
  play: ["再生", "Play"],
  pause: ["停止", "Pause"],
  pastShown: ["過去を表示中", "Showing the past"],
  slider: ["時刻", "Time"],
  stepBack: ["1コマ戻る", "One step back"],
  stepOn: ["1コマ進む", "One step forward"],
  speed: ["再生の速さ", "Speed"],
  perSecond: ["{n} 時間/秒", "{n} h per s"],
  replay: ["再生：", "Replay: "],
  replayDates: ["期間を選んで再生", "Replay dates"],
  replayEnd: ["再生を終える", "End the replay"],
  from: ["いつから（日本時間）", "From (Japan time)"],
  until: ["いつまで（日本時間）", "To (Japan time)"],
  levelsAs: ["レベル", "Levels"],
  knownNow: ["いま分かっているレベル（後から届いたデータによる改訂後）", "as known now (revised by late data)"],
  knownThen: ["当時分かっていたレベル（改訂前。1時間より後に届いたものは除く）", "as known then (before revisions; without data more than an hour late)"],
  afterRevision: ["いま分かっている値（改訂後）", "known now (revised)"],
  beforeRevision: ["当時分かっていた値（改訂前）", "known then"],
  show: ["表示", "Show"],
  availableRange: ["{from} から {to} までのレベルがあります", "Levels are available from {from} to {to}"],
  revised: ["後から改訂 {n} 件", "{n} revised later"],
  frameCovers: ["1コマは {m} 間の最高レベル", "each step holds the highest level of {m}"],
  separator: ["。", "; "],
  noDataThen: ["当時届いていたデータはありません", "no data received by then"],
  presentLevel: ["現在は", "Now:"],
  thisMoment: ["この時点", "This moment"],
  linesAreCurrent: ["図の基準線は現在の基準値です", "The lines show the current thresholds"],
  revisedLater: ["後から改訂されたレベルです：{why}", "Revised later: {why}"],
  well: ["正常", "Well"],
  silent: ["途絶", "Silent"],
  late: ["遅れ", "Late"],
  clock: ["時計未同期", "Clock unset"],
  suspect: ["異常の疑い", "Suspect"],
  history: ["保存データ", "history"],
  nodeCount: ["観測点", "Nodes"],
  state: ["状態", "State"],
  node: ["観測点", "Node"],
  qc: ["品質", "Quality"],
  flag1: ["良", "good"],
  flag2: ["未検査", "not tested"],
  flag3: ["疑わしい", "suspect"],
  flag4: ["不良", "failed"],
  flag9: ["欠測", "missing"],
  since: ["{t} から", "since {t}"],
  historyDays: ["雨量の蓄積 {n} 日分（60日未満は指数が小さめ）", "Index from {n} days of rain (too low below 60 days)"],
  mapFailed: ["この端末では地図を描けません（WebGL）。右の一覧をお使いください", "This device cannot draw the map (WebGL): use the list"],
  legend: ["凡例", "Legend"],
  loading: ["読み込み中…", "Loading…"],
  close: ["閉じる", "Close"],
  time: ["時刻", "Time"],
  acknowledge: ["確認した", "Acknowledge"],
  note: ["引き継ぎメモ", "Hand-over note"],
  write: ["記録する", "Write"],
  remark: ["ひとこと（任意）", "Remark (optional)"],
  who: ["誰が", "By"],
  timeColumn: ["いつ", "When"],
  what: ["内容", "What"],
  noNotes: ["メモはまだありません", "No notes yet"],
  needsAnalyst: ["確認や記録には「担当者」または「責任者」の権限が必要です", "To acknowledge or write, the role analyst or chief is needed"],
  clockLabel: ["時計", "Clock"],
  no: ["未同期", "not set"],
  battery: ["電源", "Power"],
  nodes: ["観測点", "Nodes"],
  gateways: ["ゲートウェイ", "Gateways"],
  gateway: ["ゲートウェイ", "Gateway"],
  gone: ["一覧から消えた", "Gone from the list"],
  area: ["担当区域", "Area"],
  place: ["位置", "Place"],
  placeExact: ["設定された位置", "as set"],
  placeAbout: ["このあたり（担当区域の中央）", "about here (the middle of its area)"],
  nodesServed: ["観測点数", "Nodes served"],
  lastReceived: ["経由した最終受信", "Last received through it"],
  levelColumn: ["レベル", "Level"],
  queued: ["送信待ち（優先度:件数）", "Waiting (priority:count)"],
  oldest: ["最古の待ち", "Oldest waiting"],
  dropped: ["破棄", "Dropped"],
  none: ["なし", "none"],
  reportedAt: ["{t}の報告", "reported {t}"],
  wayBack: ["現地への通知と警報装置", "Notice and alarms on the slope"],
  noNotice: ["有効な通知はありません", "No notice is in force"],
  noticeSent: ["{level}の通知を送信 {t}", "Notice sent: {level}, {t}"],
  validUntil: ["（{t} まで有効）", "(valid until {t})"],
  noticeHeld: ["データが途絶えたため保持中", "held without data"],
  notAccepted: ["どの管理サーバーもまだ受け付けていません", "No Manager has accepted it yet"],
  acceptedBy: ["管理サーバー {broker} が受付 {t}", "Accepted by Manager {broker} at {t}"],
  receivedVia: ["ゲートウェイ {gateway} を通り、観測点が受信 {t}", "Passed gateway {gateway}, received by the node at {t}"],
  beforeRestart: ["（再起動前）", "before its restart"],
  notReceived: ["まだ受信の報告がありません", "No receipt reported yet"],
  noReport: ["報告がありません", "It reports nothing about alarms"],
  noOutputs: ["警報装置の報告なし", "no alarm outputs reported"],
  alarmOutputs: ["警報装置", "Alarm outputs"],
  output_on: ["作動中", "ON"],
  output_off: ["停止", "off"],
  output_limited: ["作動時間を過ぎ、断続", "flashing after its longest time"],
  output_unknown: ["レベル不明、断続", "flashing, level unknown"],
  output_drill: ["訓練中", "DRILL"],
  output_failed: ["故障", "failed"],
  startDrill: ["警報装置の訓練…", "Drill of the alarms…"],
  startDrillNow: ["訓練を始める", "Start the drill"],
  endDrill: ["訓練を終える", "End the drill"],
  drillAsk: ["この区画のサイレンや回転灯が、訓練の鳴り方（短く3回、10秒ごと）で動きます。実際に基準のレベルに達すると、訓練に優先して直ちに切り替わります。住民への周知を確認してください。", "Sirens and lamps of this cell give the drill's signal: three short ones every 10 s. A real alarm takes over at once. Make sure that people on the slope know."],
  drillNow: ["【訓練】{level} {t} まで", "DRILL: {level} until {t}"],
  notAnAlarm: ["訓練です。実際の危険を知らせるものではありません", "This is not an alarm"],
  drillOrdered: ["訓練を指示 {t}（{who}）", "Drill ordered at {t} by {who}"],
  lastDrill: ["前回の訓練：{level} {t}（{who}）", "Last drill: {level}, {t} by {who}"],
  duration: ["時間", "Duration"],
  minutes: ["{n} 分間", "{n} min"],
  noGateways: ["ゲートウェイを使っていると報告した観測点はまだありません", "No node has reported its gateway yet"],
  managersUnreachable: ["管理サーバーの一覧を取得できません（状態は観測点の報告によります）：", "The Managers' list cannot be fetched; states come from the nodes' reports: "],
  managersUnset: ["管理サーバーの一覧は設定されていません（console.managers）。状態は観測点の報告によります", "No Managers are set (console.managers): states come from the nodes' reports"],
  remarks: ["時計・故障・機器・品質", "Clock, faults, machine, quality"],
  filter: ["名前でさがす", "Find by name"],
  nodesShown: ["{n} / {all} 点を表示（状態の悪い順）", "{n} of {all} shown, worst first"],
  velocity: ["変位の速さ", "Displacement rate"],
  failure: ["逆速度法による崩壊予測時刻", "Time of failure by inverse velocity"],
  confident: ["90 % 信頼区間 {from}～{to}、R² {r}、{n} 点", "90 % interval {from} to {to}, R² {r}, {n} points"],
  unusable: ["使えません：{gate}", "not usable: {gate}"],
  noise: ["ノイズ", "Noise"],
  margin: ["CL までの余裕", "Margin to the critical line"],
  effective: ["実効雨量（1.5 h / 72 h）", "Effective rain (1.5 h / 72 h)"],
  moisture: ["土壌水分の百分位", "Moisture percentile"],
  pore: ["間隙水圧の百分位", "Pore pressure percentile"],
  completeness: ["24時間の雨量データの揃い具合", "Rain data of the last 24 h"],
  whatIf: ["雨の試算", "What if"],
  perHour: ["mm/時", "mm/h"],
  hours: ["時間", "hours"],
  whatIfActive: ["試算：{mm} mm/時が {h} 時間続いた場合（実際の判定ではありません）", "What if: {mm} mm/h for {h} h (not the current levels)"],
  allCells: ["すべての区画", "All cells"],
  thresholdsHere: ["この区画の基準値", "Thresholds of this cell"],
  scope: ["対象", "Applies to"],
  oneCell: ["1つの区画", "One cell"],
  allOfThem: ["市町村全域（{n} 区画）", "The whole municipality ({n} cells)"],
  cellToken: ["区画", "Cell"],
  confirmAll: ["{n} 区画すべての基準値を変えることを確認しました", "I confirm that the thresholds of all {n} cells change"],
  linePercent: ["CL（県の基準線に対する％）", "Critical line (% of the prefecture's)"],
  tilt3: ["傾斜 レベル3相当 (°/h)", "Tilt, level 3 (°/h)"],
  tilt4: ["傾斜 レベル4相当 (°/h)", "Tilt, level 4 (°/h)"],
  paleLines: ["薄い線：いまの基準値　濃い線：変更後", "Pale lines: present thresholds; strong lines: changed"],
  example: ["下の図表は {cell} のものです（いちばん湿った区画）", "The figures below are those of {cell}, the wettest cell"],
  rises: ["過去のデータで判定し直した結果（{from} から）", "The past judged again (since {from})"],
  risesHint: ["レベルの判定と同じ計算で、いまの基準値と変更後の基準値のそれぞれについて判定し直したものです", "Judged by the code of the scoring job, with the present and with the changed thresholds"],
  timesRisen: ["レベルに達した回数", "Times the level was reached"],
  storms: ["主な大雨", "Storms"],
  stormPeriod: ["期間", "Period"],
  stormRain: ["雨量（最大60分雨量、最大指数）", "Rain (highest 60-min rain, highest index)"],
  stormWarning: ["レベル3以上", "Level 3 or above"],
  otherStorms: ["ほか {n} 回", "{n} more"],
  noPast: ["判定し直せるデータがありません", "There are no data to judge"],
  never: ["なし", "never"],
  previewing: ["計算しています…", "Computing…"],
  versionValues: ["注意報 / 警報 / 特別警報", "Advisory / warning / special"],
  versionState: ["判定への反映", "In the levels"],
  actions: ["操作", "Actions"],
  versionApplied: ["反映済み", "Applied"],
  versionAppliedAt: ["反映済み（{t}）", "Applied at {t}"],
  versionWaiting: ["次の判定を待っています（{n} / {all} 区画）", "Waits for the next scoring ({n} of {all} cells)"],
  versionNotRead: ["反映されません", "Not applied"],
  versionReplaced: ["新しい版に置き換え済み", "Replaced"],
  versionWithdrawn: ["設定値を解除", "End the set values"],
  revert: ["この版に戻す", "Revert to this"],
  reverting: ["{t} の版に戻します。理由を書いて保存してください", "Reverts to the version of {t}: write the reason and save"],
  withdrawing: ["選んだ対象の設定値を解除します。個別の設定値がない区画には市町村全域の設定値を、それもなければ県の基準値を使います。理由を書いて保存してください", "Ends the values set for one cell or for the whole municipality, as chosen: a cell without its own has those of the whole municipality, or else the prefecture's. Write the reason and save"],
  jobReads: ["レベル判定処理はこのコンソールの基準値を読んでいます。保存した版は、各区画の次の判定から反映されます", "The scoring job reads the thresholds of this console: a saved version applies from the next scoring of each cell"],
  jobUnreported: ["レベル判定処理がどの基準値を使っているか、報告がありません。まだ動いていないか、古い版です。保存しても地図のレベルに反映されるとは限りません", "The scoring job has not reported which thresholds it applies: it has not run yet, or is of an earlier release. What you save may not reach the levels on the map"],
  jobReadsNone: ["レベル判定処理は基準値の変更を読んでいません。保存しても地図のレベル・通知・サイレンは変わりません。backend.toml の [criteria] に次の行を加えてレベル判定処理を再起動してください：", "The scoring job does not read changes of thresholds: what you save changes neither the levels on the map nor notices and sirens. Add this line to [criteria] in backend.toml and restart the job:"],
  jobReadsOther: ["レベル判定処理は別のファイル（{path}）を読んでいます。このコンソールで保存しても地図のレベル・通知・サイレンは変わりません。[criteria] を次のように直してください：", "The scoring job reads another file ({path}): what you save here changes neither the levels on the map nor notices and sirens. Correct [criteria]:"],
  advisoryMm: ["注意報基準 (mm)", "Advisory (mm)"],
  warningMm: ["警報基準 (mm)", "Warning (mm)"],
  specialMm: ["特別警報基準 (mm)", "Special warning (mm)"],
  why: ["変更の理由", "Why"],
  preview: ["影響を見る", "Preview"],
  save: ["新しい版として保存", "Save as a new version"],
  saveAll: ["全域の新しい版として保存", "Save for the whole municipality"],
  saved: ["保存しました", "Saved"],
  needsChief: ["基準値の変更には「責任者」の権限が必要です", "To change thresholds, the role chief is needed"],
  effect: ["過去72時間の最高レベル別の区画数（雨のみ）", "Cells by their highest level of the last 72 h (rain only)"],
  before: ["いまの基準", "Present"],
  after: ["変更後", "Changed"],
  versions: ["版の一覧", "Versions"],
  defaultVersion: ["初期値（仮）", "Default (assumed)"],
  highestIf: ["試算で最も高いレベル（実際の判定ではありません）", "Highest level under the assumed rain"],
  highestThen: ["過去の時点で最も高いレベル：", "Highest level then:"],
  firstDay: ["はじめの日", "First day"],
  lastDay: ["おわりの日", "Last day"],
  compute: ["計算する", "Compute"],
  slides: ["土砂災害の記録", "Landslides"],
  count: ["件数", "Count"],
  seasonSummary: ["{days} 日、土砂災害 {events} 回、レベルのない時間 {missing} 時間", "{days} days, {events} landslide events, {missing} h without a level"],
  fewEvents: ["回数が少ないので、数字の不確かさは大きいです", "Few events: these numbers are very uncertain"],
  byDays: ["日ごとの的中表（市町村の最高レベル）", "Days: hits and misses (highest level of the municipality)"],
  byHours: ["レベルと災害規模ごとの時間（EDuMaP）", "Hours by level and class of event (EDuMaP)"],
  leadTimes: ["リードタイム", "Lead times"],
  class_none: ["災害なし", "none"],
  class_small: ["小（1件）", "small (1)"],
  class_intermediate: ["中（2〜4件）", "intermediate (2-4)"],
  class_large: ["大（5件以上）", "large (5+)"],
  official: ["気象庁の発表（市町村）", "Issued by JMA (municipality)"],
  lag: ["届くまで", "Lag"],
  // events
  events: ["事象の記録", "Events"],
  eventFilters: ["絞り込み", "Filters"],
  eventFind: ["場所・観測点でさがす", "Find by place or node"],
  eventFromLevel: ["レベル{n}相当以上", "Level {n} and above"],
  eventAllLevels: ["すべてのレベル", "All levels"],
  eventAllCauses: ["すべての要因", "All causes"],
  eventAll: ["すべて", "All"],
  eventNewer: ["← 前のページ", "← Previous"],
  eventOlder: ["次のページ →", "Next →"],
  eventPage: ["{total} 件中 {first}～{last} 件", "{first} to {last} of {total}"],
  noEvents: ["該当する事象はありません", "No events"],
  eventWhere: ["場所", "Place"],
  eventWhen: ["時刻", "Time"],
  eventSince: ["{t} から", "since {t}"],
  soundHeldBack: ["ブラウザーが音を止めています。画面を一度クリックしてください。", "The browser holds the sound back: click once on the page."],
  eventMeasured: ["{t} の観測を遅れて受信", "measured {t}, received late"],
  eventLasts: ["継続中", "goes on"],
  eventLost: ["現在は判定不能（最後の判定 {t}）", "cannot be judged now (last judged {t})"],
  eventPeak: ["{t} に{level}", "{t}: {level}"],
  eventOver: ["{t} に終息", "over at {t}"],
  eventQuiet: ["{t} に終了（緊急通報が6時間ない。危険が去ったとは限りません）", "ended at {t} (no message for 6 hours; this is no sign of safety)"],
  eventMessages: ["緊急通報 {n} 件", "{n} urgent messages"],
  eventSelect: ["選ぶ", "Select"],
  eventSelectAll: ["このページをすべて選ぶ", "Select all on this page"],
  eventsChosen: ["{n} 件を選択中", "{n} selected"],
  eventDecide: ["記録する", "Record"],
  eventChanged: ["表示後にレベルが上がったか、ほかの職員が対応を記録しました。内容を確認し、もう一度記録してください。", "Since it was shown the level has risen, or somebody else has recorded a decision. Look at it, and record yours again."],
  eventReopen: ["未対応に戻す", "Open again"],
  eventDetails: ["詳細", "Details"],
  eventHistory: ["経過", "History"],
  eventFailedAt: ["発生時刻（日本時間。不明なら空欄）", "Time of the failure (Japan; empty if unknown)"],
  eventsOpen: ["未対応 {n} 件、最高 {level}", "{n} open, highest: {level}"],
  eventsWaiting: ["未対応の事象 {n} 件、最高 {level} →", "{n} open events, highest: {level} →"],
  handover: ["引き継ぎ資料", "Hand-over page"],
  state_open: ["未対応", "Open"],
  state_acknowledged: ["確認済み", "Acknowledged"],
  state_checked: ["現地確認済み", "Checked on site"],
  state_false_alarm: ["誤報", "False alarm"],
  state_slope_failed: ["崩壊を確認", "Slope failed"],
  state_closed: ["対応終了", "Closed"],
  history_opened: ["レベル{n}相当に上昇 {node}", "rose to level {n} {node}"],
  history_rose: ["レベル{n}相当に上昇 {node}", "rose to level {n} {node}"],
  history_cause: ["新しい要因 {node}", "one more cause {node}"],
  history_over: ["終息（レベル3相当未満の判定が1時間続いた）", "over (judged below level 3 for an hour)"],
  history_quiet: ["終了（緊急通報が6時間ない。危険が去ったとは限りません）", "ended (no message for 6 hours; this is no sign of safety)"],
  history_level: ["レベル{n}相当に上昇", "rose to level {n}"],
  history_message: ["{node} から緊急通報（優先度 {n}）", "urgent message of {node} (priority {n})"],
  cause_rain: ["雨", "rain"],
  soundOn: ["新しい事象で音を鳴らす", "Sound for new events"],
  notifyOn: ["ブラウザーで通知する", "Notify in the browser"],
  notifyDenied: ["ブラウザーの設定で通知が許可されていません", "The browser's settings do not allow notifications"],
  notifications: ["通知", "Notifications"],
  notificationTries: ["（{n} 回試行）", "({n} attempts)"],
  notificationsLate: ["未送信 {n} 件", "{n} not delivered yet"],
  notificationAfter: ["（{n} 分以内に対応がない場合）", "(when nobody decides within {n} min)"],
  notificationTest: ["試験送信", "Send a test"],
  noRules: ["通知先は設定されていません（console.notifications）", "No notifications are set (console.notifications)"],
  unknownDistricts: ["地区「{names}」は場所の一覧にありません。この地区の事象は通知されないことがあります。通知の設定か、場所の一覧を直してください", "No place has the district {names}: events there may not be notified. Correct the rule, or load the places"],
  notification_waiting: ["送信待ち", "waiting"],
  notification_delivered: ["送信済み", "delivered"],
  notification_not_needed: ["不要（確認済み、またはより高いレベルを送信済み）", "not needed (acknowledged, or a higher level was sent)"],
  notification_given_up: ["送信できず", "given up"],
  chartMissing: ["途切れは欠測です", "A gap is missing data"],
  // Accounts.
  account: ["アカウント", "Account"],
  accounts: ["アカウントの管理", "Accounts"],
  changePassword: ["パスワードを変更", "Change the password"],
  oldPassword: ["現在のパスワード", "Present password"],
  newPassword: ["新しいパスワード（10文字以上）", "New password (10 characters or more)"],
  firstPassword: ["初期パスワード（10文字以上）", "First password (10 characters or more)"],
  wrongOldPassword: ["現在のパスワードが違います", "The present password is wrong"],
  addAccount: ["アカウントを追加", "Add an account"],
  role: ["権限", "Role"],
  role_viewer: ["閲覧者", "viewer"],
  role_analyst: ["担当者", "analyst"],
  role_chief: ["責任者", "chief"],
  locked: ["停止中", "locked"],
  lock: ["停止する", "Lock"],
  unlock: ["停止を解除", "Unlock"],
  secondFactor: ["二要素認証あり", "second factor"],
  token: ["トークンあり", "token"],
  // Series of nodes.
  series: ["時系列", "Series"],
  seriesOfCell: ["時系列（雨量・変位など）を開く", "Open the series of these nodes"],
  seriesOfNode: ["時系列を開く", "Open the series"],
  range: ["期間", "Range"],
  rangeHours: ["{n}時間", "{n} h"],
  rangeDays: ["{n}日", "{n} d"],
  tenMinuteBars: ["10分雨量", "10-minute rain"],
  hourlyBars: ["1時間雨量", "Hourly rain"],
  addNode: ["観測点を追加", "Add a node"],
  chooseNodes: ["観測点を選んでください", "Choose nodes"],
  noRainGauge: ["この期間の雨量データはありません", "No rain data in this range"],
  rainOf: ["雨量と累加雨量", "Rain and cumulative rain"],
  rainTen: ["10分雨量", "10-minute rain"],
  rainHour: ["1時間雨量", "Hourly rain"],
  cumulative: ["累加雨量", "Cumulative rain"],
  totalOf: ["{n}時間雨量", "{n} h"],
  knownShare: ["データ {n} %", "{n} % of the data"],
  doubtedRain: ["うち疑わしい値 {n} mm", "doubtful: {n} mm"],
  inverseVelocity: ["速度の逆数", "Inverse velocity"],
  tangentAngle: ["接線角", "Tangent angle"],
  angleAlert: ["加速中期", "middle acceleration"],
  angleEmergency: ["臨界加速", "critical acceleration"],
  steadyHint: ["接線角は、30日間の速度の中央値（{v}）を定常クリープの速度とみなした参考値です（45°が定常）。レベルの判定には使いません", "Tangent angles take the median speed of 30 days ({v}) as secondary creep, which is 45°. No level follows from them"],
  newestHighest: ["最新 {last}、最大 {top}", "newest {last}, highest {top}"],
  shownReadings: ["表示中の観測値", "Readings shown"],
  shownMovement: ["表示中の変位・傾斜の速さ", "Rates of movement shown"],
  doubtful: ["疑わしい観測値", "Doubtful readings"],
  noDoubts: ["この期間に疑わしい観測値はありません", "No doubtful readings in this range"],
  readingColumn: ["観測値", "Reading"],
  valueColumn: ["値", "Value"],
  // Places, times and causes of levels.
  calm: ["基準に達していない", "No criterion reached"],
  sinceFor: ["{t}から（{m}）", "since {t} ({m})"],
  cannotJudge: ["現在の状況は判定できません。最後のデータ：{t}（{m}前）", "The present state cannot be judged. Last data: {t} ({m} ago)"],
  cannotJudgeYet: ["現在の状況は判定できません。データがまだありません", "The present state cannot be judged: there are no data yet"],
  nextLevel: ["次のレベルまで {n} mm", "{n} mm to the next level"],
  householdsOf: ["{n}世帯", "{n} households"],
  households: ["世帯数", "Households"],
  shelter: ["避難所", "Shelter"],
  contact: ["連絡先", "Contact"],
  byDistrict: ["地区別", "By district"],
  placeName: ["場所", "Place"],
  coordinates: ["緯度・経度", "Latitude, longitude"],
  andMoreCells: ["ほか{n}区画", "and {n} more cells"],
  listSeparator: ["、", ", "],
  onePoint: ["この期間の値は1つだけです：{v}（{t}）", "There is one value only: {v} ({t})"],
  cause_tilt: ["傾斜の変化", "tilt"],
  cause_displacement: ["地表の変位", "displacement"],
  cause_wire: ["ワイヤーセンサーの切断", "a cut wire"],
  cause_vibration: ["振動", "vibration"],
  cause_saturation: ["土壌水分の上昇", "soil moisture"],
  cause_pore: ["間隙水圧の上昇", "pore pressure"],
  cause_water_level: ["水位の急変", "a sudden water level"],
  cause_limit: ["設定値への到達", "a set limit"],
  cause_other: ["観測値", "observations"],
  overlaysAndSearch: ["検索・重ね合わせ", "Search and overlays"],
  overlays: ["重ね合わせ", "Overlays"],
  noOverlays: ["重ね合わせはまだありません", "No overlays yet"],
  opacity: ["塗りの濃さ", "Opacity"],
  remove: ["削除", "Remove"],
  removeOverlay: ["「{title}」を地図から削除しますか", "Remove “{title}” from the map?"],
  overlayBy: ["{n} 件・登録 {who}", "{n} features, added by {who}"],
  addOverlay: ["重ね合わせを追加", "Add an overlay"],
  overlayFile: ["ファイル（GeoJSON、Shapefile の zip、緯度・経度の列がある CSV）", "File (GeoJSON, zipped Shapefile, CSV with latitude and longitude)"],
  overlayTitle: ["表示名", "Title"],
  overlayKind: ["種類", "Kind"],
  overlay_warning_zone: ["土砂災害警戒区域", "Sediment disaster warning zone"],
  overlay_special_zone: ["土砂災害特別警戒区域", "Sediment disaster special warning zone"],
  overlay_shelter: ["避難所", "Shelter"],
  overlay_road: ["道路", "Road"],
  overlay_district: ["字・地区の境界", "District boundary"],
  overlay_place: ["地名・住所", "Place or address"],
  searchHint: ["地名・住所・観測点", "Place, address or node"],
  nothingFound: ["見つかりません", "Nothing found"],
  reviewTitle: ["観測値の確認", "Review of readings"],
  reviewNeedsChief: ["判定の記録には「責任者」の権限が必要です", "To decide about readings, the role chief is needed"],
  doubtColumn: ["自動品質判定", "Automatic flag"],
  readingCount: ["{n} 個", "readings: {n}"],
  nothingToReview: ["この期間に、確認していない疑わしい観測値はありません", "No doubtful reading in this range waits for a review"],
  reviewMore: ["レベルの高い区画から、新しい順に {n} 件を表示しています。ほかにもあります", "The {n} of the highest levels, newest first; there are more"],
  acceptDoubt: ["疑わしいままとする", "Accept the doubt"],
  rejectDoubt: ["正常値とする", "Reject the doubt"],
  markBad: ["観測値を異常値とする", "Mark readings as bad"],
  markBadShort: ["異常値とする", "Mark as bad"],
  revertDecision: ["判定を取り消す", "Revert the decision"],
  acceptHint: ["自動品質判定のとおり、疑わしい値として扱い続けます。レベルは変わらず、この一覧から外れます", "The readings stay doubtful, as the tests judged. No level changes; they leave the list"],
  rejectHint: ["この期間のこの疑いを取り消し、正常値として判定に使います。ほかの理由の疑いは残ります。データは消えません", "Rejects this doubt in this range: the readings count as good. Doubts for other reasons stay. No data are deleted"],
  badHint: ["この期間の値を判定に使いません。雨量は 0 ではなく欠測として扱います。データは消えません", "The readings of this range do not count; rain is unknown then, not zero. No data are deleted"],
  revertHint: ["自動品質判定に戻します。判定の記録は残ります", "The automatic flags count again. The decision stays in the journal"],
  reasonNeeded: ["理由（必須）", "Reason (required)"],
  reasonOptional: ["理由（任意）", "Reason (optional)"],
  saveDecision: ["判定を保存", "Save the decision"],
  confirmRaise: ["レベル{n}相当に上がることを確認しました", "I confirm that this raises the cell to level {n}"],
  raisesNow: ["保存すると、この区画はいまレベル{n}相当に上がり、通知とサイレンがそれに従います", "Saving raises this cell to level {n} now; notices and sirens follow"],
  raisesPast: ["保存すると、この区画の過去のレベルがレベル{n}相当に上がります（最新のレベルは 4 以上に上がりません）", "Saving raises past levels of this cell to level {n}; the newest one is not raised to 4 or more"],
  newestLevel: ["最新の判定", "Newest level"],
  asItIs: ["いま", "As it is"],
  asItWouldBe: ["保存後", "As it would be"],
  noticeLevelIs: ["通知・サイレンはレベル{n}", "notices and sirens: level {n}"],
  stepsChange: ["10分ごとの判定 {n} 回のレベルが変わります", "The level of {n} ten-minute steps changes"],
  noLevelChanges: ["レベルは変わりません（観測値 {n} 個）", "No level changes (readings: {n})"],
  reviewChanged: ["確認の後に影響が変わったため、保存していません。影響を確認して、もう一度保存してください", "Not saved: the effect has changed since it was shown. Look at it, and save again"],
  reviewPreviewHint: ["レベルの判定と同じ計算で判定し直したものです。周りの区画は、次の観測値が届いたときに判定し直されます", "Judged by the code of the scoring job. Cells around use the decision from their next reading on"],
  decisions: ["判定の記録", "Decisions"],
  decision: ["判定", "Decision"],
  reasonColumn: ["理由", "Reason"],
  noDecisions: ["まだありません", "None yet"],
  verdict_accepted: ["疑わしいまま", "Doubt accepted"],
  verdict_good: ["正常値", "Doubt rejected: good"],
  verdict_bad: ["異常値", "Bad"],
  raisedTo: ["レベル{n}相当に上げた", "raised the cell to level {n}"],
  revertedBy: ["{who} が取り消し（{t}）", "Reverted by {who}, {t}"],
  reviewRecorded: ["記録済み（レベルは変わりません）", "Recorded; changes no level"],
  reviewWaiting: ["次の判定を待っています", "Waits for the next scoring"],
  reviewEnding: ["取り消しは次の判定を待っています", "The reversal waits for the next scoring"],
  reviewReverted: ["取り消し済み", "Reverted"],
  reviewJobReads: ["レベル判定処理はこのコンソールの判定を読んでいます。保存した判定は、次のレベル判定から反映されます", "The scoring job reads the decisions of this console: they apply from its next pass on"],
  reviewJobUnreported: ["レベル判定処理がどの判定を使っているか、報告がありません。まだ動いていないか、古い版です。保存しても地図のレベルに反映されるとは限りません", "The scoring job has not reported which decisions it applies: it has not run yet, or is of an earlier release. What you save may not reach the levels on the map"],
  reviewJobReadsNone: ["レベル判定処理は観測値の判定を読んでいません。保存しても地図のレベル・通知・サイレンは変わりません。backend.toml の [score] に次の行を加えてレベル判定処理を再起動してください：", "The scoring job does not read decisions about readings: what you save changes neither the levels on the map nor notices and sirens. Add this line to [score] in backend.toml and restart the job:"],
  reviewJobReadsOther: ["レベル判定処理は別のファイル（{path}）を読んでいます。このコンソールで保存しても地図のレベル・通知・サイレンは変わりません。[score] を次のように直してください：", "The scoring job reads another file ({path}): what you save here changes neither the levels on the map nor notices and sirens. Correct [score]:"],
} as const;

export type Key = keyof typeof TEXTS;

let language: Language = "ja";

export function setLanguage(wanted: Language): void {
  language = wanted;
  document.documentElement.lang = wanted;
  localStorage.setItem("yamamori-language", wanted);
}

export function currentLanguage(): Language {
  return language;
}

export function t(key: Key, values: Record<string, string | number> = {}): string {
  const text: string = TEXTS[key][language === "ja" ? 0 : 1];
  return text.replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ""));
}

// Official criteria for rain, in use from 2026-05-29, and the stage of a level: the
// municipality issues evacuation information from level 3 on.
const LEVELS: Record<number, { ja: [string, string]; en: [string, string] }> = {
  5: { ja: ["土砂災害特別警報の基準", "市町村の避難情報では「緊急安全確保」の段階"], en: ["special-warning criterion", 'the stage of "emergency safety measures"'] },
  4: { ja: ["土砂災害危険警報の基準", "市町村の避難情報では「避難指示」の段階"], en: ["danger-warning criterion", 'the stage of "evacuation order"'] },
  3: { ja: ["土砂災害警報の基準", "市町村の避難情報では「高齢者等避難」の段階"], en: ["warning criterion", 'the stage of "evacuation of the elderly"'] },
  2: { ja: ["土砂災害注意報の基準", "市町村の避難情報はなく、住民が避難行動を確認する段階"], en: ["advisory criterion", "no evacuation information; residents check their evacuation routes"] },
};

export const MISSING = 0;
export const NO_JUDGEMENT = 6;

// Added to a level that is held.
export const HELD_OFFSET = 10;

export function isHeld(level: number): boolean {
  return level > HELD_OFFSET;
}

// The level that is judged or held; 0 without one.
export function severity(level: number): number {
  return level === NO_JUDGEMENT ? 0 : level % HELD_OFFSET;
}

// Name of a level, with the time of the last judgement where it is held.
export function presentName(level: number, knownS: number): string {
  return isHeld(level) && knownS ? t("heldSince", { n: severity(level), t: formatTime(knownS) }) : levelName(level);
}

export function levelName(level: number): string {
  if (isHeld(level)) return t("held", { n: severity(level) });
  if (level === MISSING) return t("missing");
  if (level === NO_JUDGEMENT) return t("noJudgement");
  if (level === 1) return t("calm");
  return t("level", { n: level });
}

// What a level is equivalent to. Only rain has official criteria: a level by another cause
// must not be called one of them.
export function levelMeaning(level: number, causes: readonly string[]): string {
  if (isHeld(level)) return t("heldMeaning");
  if (level === 1) return t("calm");
  const words = LEVELS[level]?.[language];
  if (!words) return "";
  const why = causeWords(level, causes) || t("cause_other");
  if (language === "en") return `${causes.includes("rain") ? "" : "by "}${why} (${words[1]})`;
  return `${why}${causes.includes("rain") ? "に相当" : "による"}（${words[1]}）`;
}

export function causeWords(level: number, causes: readonly string[]): string {
  const words = causes.map((cause) => (cause === "rain" ? LEVELS[level]?.[language][0] : t(`cause_${cause}` as Key)) ?? "");
  return words.filter(Boolean).join(language === "ja" ? "、" : " and ");
}

// "14:50から（9時間20分）", with the date on another day. A step may end after now.
export function sinceWords(endS: number, nowS: number): string {
  const sinceS = Math.min(endS, nowS);
  const isToday = formatDay(sinceS) === formatDay(nowS);
  return t("sinceFor", { t: isToday ? formatClock(sinceS) : formatTime(sinceS), m: formatHours(nowS - sinceS) });
}

export function formatHours(seconds: number): string {
  const minutes = Math.max(0, Math.floor(seconds / 60));
  const [d, h, m] = [Math.floor(minutes / 1440), Math.floor(minutes / 60), minutes % 60];
  if (d >= 2) return language === "ja" ? `${d}日${h % 24}時間` : `${d} d ${h % 24} h`;
  if (language === "ja") return h ? `${h}時間${String(m).padStart(2, "0")}分` : `${m}分`;
  return h ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min`;
}

export function shortened(text: string, most: number): string {
  const signs = [...text];
  return signs.length > most ? `${signs.slice(0, most - 1).join("")}…` : text;
}

const ZONE = { timeZone: "Asia/Tokyo", hourCycle: "h23" } as const;

// A list has hundreds of times, and making a format costs a hundred times what its use costs.
const formats = new Map<string, Intl.DateTimeFormat>();

function format(seconds: number, locale: string, fields: Intl.DateTimeFormatOptions): string {
  const key = locale + Object.entries(fields).join();
  const known = formats.get(key) ?? new Intl.DateTimeFormat(locale, { ...ZONE, ...fields });
  formats.set(key, known);
  return known.format(seconds * 1000);
}

export function formatTime(seconds: number): string {
  const year = Math.abs(Date.now() - seconds * 1000) > 300 * 86_400_000 ? "numeric" : undefined;
  return `${format(seconds, language, { year, month: "numeric", day: "numeric", weekday: "short" })} ${formatClock(seconds)}`;
}

const JAPAN_S = 9 * 3600;

// Value of a datetime-local field in Japan's time, and back.
export function toDateField(seconds: number): string {
  return new Date((seconds + JAPAN_S) * 1000).toISOString().slice(0, 16);
}

export function fromDateField(field: string): number {
  return Date.parse(`${field}Z`) / 1000 - JAPAN_S;
}

export function formatDay(seconds: number): string {
  return format(seconds, language, { month: "numeric", day: "numeric" });
}

export function formatClock(seconds: number): string {
  return format(seconds, "en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function formatPeriod(fromS: number, toS: number): string {
  if (toS - fromS < 60) return formatTime(fromS);
  return `${formatTime(fromS)} – ${formatDay(fromS) === formatDay(toS) ? formatClock(toS) : formatTime(toS)}`;
}

export function formatSeconds(seconds: number): string {
  return format(seconds, "en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function formatAgo(seconds: number): string {
  return language === "ja" ? `${formatDuration(seconds)}前` : `${formatDuration(seconds)} ago`;
}

export function formatDuration(seconds: number): string {
  const steps: [number, string, string][] = [
    [86400 * 2, "日", " d"],
    [3600 * 2, "時間", " h"],
    [60, "分", " min"],
    [0, "秒", " s"],
  ];
  const units: Record<string, number> = { "日": 86400, "時間": 3600, "分": 60, "秒": 1 };
  const [, ja, en] = steps.find(([least]) => seconds >= least) ?? [0, "秒", " s"];
  const count = Math.max(0, Math.floor(seconds / (units[ja] ?? 1)));
  return `${count}${language === "ja" ? ja : en}`;
}
