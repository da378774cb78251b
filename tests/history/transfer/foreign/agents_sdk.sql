-- What SQLiteSession of openai-agents 0.24.0 wrote for one session.
BEGIN TRANSACTION;
CREATE TABLE agent_messages (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                session_id TEXT NOT NULL,
                message_data TEXT NOT NULL,
                created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
                FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id)
                    ON DELETE CASCADE
            );
INSERT INTO "agent_messages" VALUES(1,'s1','{"role": "user", "content": "hi"}','2026-11-27 14:29:08');
INSERT INTO "agent_messages" VALUES(2,'s1','{"id": "fc", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}','2026-11-27 14:29:08');
INSERT INTO "agent_messages" VALUES(3,'s1','{"type": "function_call_output", "call_id": "c", "output": "ok"}','2026-11-27 14:29:08');
INSERT INTO "agent_messages" VALUES(4,'s1','{"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]}','2026-11-27 14:29:08');
CREATE TABLE agent_sessions (
                session_id TEXT PRIMARY KEY,
                created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
                updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
            );
INSERT INTO "agent_sessions" VALUES('s1','2026-11-27 14:29:08','2026-11-27 14:29:08');
CREATE INDEX idx_agent_messages_session_id
            ON agent_messages (session_id, id)
        ;
COMMIT;
