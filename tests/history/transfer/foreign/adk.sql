-- What SqliteSessionService of google-adk wrote for one session.
BEGIN TRANSACTION;
CREATE TABLE app_states (
    app_name TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    update_time REAL NOT NULL
);
INSERT INTO "app_states" VALUES('shop','{"v": 1}',1.79578975069253468513e+09);
CREATE TABLE events (
    id TEXT NOT NULL,
    app_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    invocation_id TEXT NOT NULL,
    timestamp REAL NOT NULL,
    event_data TEXT NOT NULL,
    PRIMARY KEY (app_name, user_id, session_id, id),
    FOREIGN KEY (app_name, user_id, session_id) REFERENCES sessions(app_name, user_id, id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('1d078f8b-83fd-4f32-859e-da5138872b10','shop','kim','s-1','i1',1764000000.5,'{"content":{"parts":[{"text":"Where is it?"},{"inline_data":{"data":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk-M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==","mime_type":"image/png"}}],"role":"user"},"invocation_id":"i1","author":"user","actions":{"state_delta":{},"artifact_delta":{},"requested_auth_configs":{},"requested_tool_confirmations":{}},"node_info":{"path":""},"id":"1d078f8b-83fd-4f32-859e-da5138872b10","timestamp":1764000000.5}');
INSERT INTO "events" VALUES('fedca1e8-2cc8-4394-a3a6-716b16d46ba0','shop','kim','s-1','i1',1764000001.5,'{"content":{"parts":[{"text":"let me think","thought":true},{"function_call":{"id":"c1","args":{"id":"A-17"},"name":"look_up"}}],"role":"model"},"invocation_id":"i1","author":"clerk","actions":{"state_delta":{},"artifact_delta":{},"requested_auth_configs":{},"requested_tool_confirmations":{}},"node_info":{"path":""},"id":"fedca1e8-2cc8-4394-a3a6-716b16d46ba0","timestamp":1764000001.5}');
INSERT INTO "events" VALUES('49abc854-d3dc-4f12-927f-efb11934862d','shop','kim','s-1','i1',1764000002.5,'{"content":{"parts":[{"function_response":{"id":"c1","name":"look_up","response":{"status":"sent"}}}],"role":"user"},"invocation_id":"i1","author":"clerk","actions":{"state_delta":{"seen":true},"artifact_delta":{},"requested_auth_configs":{},"requested_tool_confirmations":{}},"node_info":{"path":""},"id":"49abc854-d3dc-4f12-927f-efb11934862d","timestamp":1764000002.5}');
INSERT INTO "events" VALUES('9c925d08-6758-4c48-bf31-7e1cf672e770','shop','kim','s-1','i1',1764000003.5,'{"content":{"parts":[{"text":"It is on its way."}],"role":"model"},"invocation_id":"i1","author":"clerk","actions":{"state_delta":{},"artifact_delta":{},"requested_auth_configs":{},"requested_tool_confirmations":{}},"node_info":{"path":""},"id":"9c925d08-6758-4c48-bf31-7e1cf672e770","timestamp":1764000003.5}');
CREATE TABLE sessions (
    app_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    create_time REAL NOT NULL,
    update_time REAL NOT NULL,
    PRIMARY KEY (app_name, user_id, id)
);
INSERT INTO "sessions" VALUES('shop','kim','s-1','{"seen":true,"order":"A-17"}',1.79578975069253468513e+09,1764000003.5);
CREATE TABLE user_states (
    app_name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    state TEXT NOT NULL,
    update_time REAL NOT NULL,
    PRIMARY KEY (app_name, user_id)
);
INSERT INTO "user_states" VALUES('shop','kim','{"name": "Kim"}',1.79578975069253468513e+09);
COMMIT;
