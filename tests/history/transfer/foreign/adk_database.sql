-- What DatabaseSessionService of google-adk wrote for one session.
BEGIN TRANSACTION;
CREATE TABLE adk_internal_metadata (
	"key" VARCHAR(128) NOT NULL, 
	value VARCHAR(256) NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "adk_internal_metadata" VALUES('schema_version','1');
CREATE TABLE app_states (
	app_name VARCHAR(128) NOT NULL, 
	state TEXT NOT NULL, 
	update_time DATETIME NOT NULL, 
	PRIMARY KEY (app_name)
);
INSERT INTO "app_states" VALUES('shop','{"v": 1}','2026-11-27 14:29:12');
CREATE TABLE events (
	id VARCHAR(128) NOT NULL, 
	app_name VARCHAR(128) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	session_id VARCHAR(128) NOT NULL, 
	invocation_id VARCHAR(256) NOT NULL, 
	timestamp DATETIME NOT NULL, 
	event_data TEXT, 
	PRIMARY KEY (id, app_name, user_id, session_id), 
	FOREIGN KEY(app_name, user_id, session_id) REFERENCES sessions (app_name, user_id, id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('bc39e67b-14eb-4360-b797-3c672bd981c5','shop','kim','s-1','i1','2025-11-24 16:00:00.500000','{"content": {"parts": [{"text": "Where is it?"}, {"inline_data": {"data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk-M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "mime_type": "image/png"}}], "role": "user"}, "invocation_id": "i1", "author": "user", "actions": {"state_delta": {}, "artifact_delta": {}, "requested_auth_configs": {}, "requested_tool_confirmations": {}}, "node_info": {"path": ""}, "id": "bc39e67b-14eb-4360-b797-3c672bd981c5", "timestamp": 1764000000.5}');
INSERT INTO "events" VALUES('62c62e62-7704-4930-a5e1-7c57d3ccbf02','shop','kim','s-1','i1','2025-11-24 16:00:01.500000','{"content": {"parts": [{"text": "let me think", "thought": true}, {"function_call": {"id": "c1", "args": {"id": "A-17"}, "name": "look_up"}}], "role": "model"}, "invocation_id": "i1", "author": "clerk", "actions": {"state_delta": {}, "artifact_delta": {}, "requested_auth_configs": {}, "requested_tool_confirmations": {}}, "node_info": {"path": ""}, "id": "62c62e62-7704-4930-a5e1-7c57d3ccbf02", "timestamp": 1764000001.5}');
INSERT INTO "events" VALUES('6092a281-defd-4337-ba44-bf1feee688ca','shop','kim','s-1','i1','2025-11-24 16:00:02.500000','{"content": {"parts": [{"function_response": {"id": "c1", "name": "look_up", "response": {"status": "sent"}}}], "role": "user"}, "invocation_id": "i1", "author": "clerk", "actions": {"state_delta": {"seen": true}, "artifact_delta": {}, "requested_auth_configs": {}, "requested_tool_confirmations": {}}, "node_info": {"path": ""}, "id": "6092a281-defd-4337-ba44-bf1feee688ca", "timestamp": 1764000002.5}');
INSERT INTO "events" VALUES('f410c9c8-d011-446a-91fe-60273976fd38','shop','kim','s-1','i1','2025-11-24 16:00:03.500000','{"content": {"parts": [{"text": "It is on its way."}], "role": "model"}, "invocation_id": "i1", "author": "clerk", "actions": {"state_delta": {}, "artifact_delta": {}, "requested_auth_configs": {}, "requested_tool_confirmations": {}}, "node_info": {"path": ""}, "id": "f410c9c8-d011-446a-91fe-60273976fd38", "timestamp": 1764000003.5}');
CREATE TABLE sessions (
	app_name VARCHAR(128) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	id VARCHAR(128) NOT NULL, 
	state TEXT NOT NULL, 
	create_time DATETIME NOT NULL, 
	update_time DATETIME NOT NULL, 
	PRIMARY KEY (app_name, user_id, id)
);
INSERT INTO "sessions" VALUES('shop','kim','s-1','{"order": "A-17", "seen": true}','2026-11-27 14:29:12.192586','2025-11-24 16:00:03.500000');
CREATE TABLE user_states (
	app_name VARCHAR(128) NOT NULL, 
	user_id VARCHAR(128) NOT NULL, 
	state TEXT NOT NULL, 
	update_time DATETIME NOT NULL, 
	PRIMARY KEY (app_name, user_id)
);
INSERT INTO "user_states" VALUES('shop','kim','{"name": "Kim"}','2026-11-27 14:29:12');
CREATE INDEX idx_events_app_user_session_ts_id ON events (app_name, user_id, session_id, timestamp DESC, id DESC);
COMMIT;
