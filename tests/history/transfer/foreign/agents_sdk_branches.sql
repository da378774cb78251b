-- What AdvancedSQLiteSession of openai-agents 0.24.0 wrote for one session with a branch from its second turn.
BEGIN TRANSACTION;
CREATE TABLE agent_messages (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                session_id TEXT NOT NULL,
                message_data TEXT NOT NULL,
                created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
                FOREIGN KEY (session_id) REFERENCES agent_sessions (session_id)
                    ON DELETE CASCADE
            );
INSERT INTO "agent_messages" VALUES(1,'s1','{"role": "user", "content": "q1"}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(2,'s1','{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a1", "annotations": []}]}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(3,'s1','{"role": "user", "content": "q2"}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(4,'s1','{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a2", "annotations": []}]}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(5,'s1','{"role": "user", "content": "q3"}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(6,'s1','{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a3", "annotations": []}]}','2026-11-28 21:34:25');
INSERT INTO "agent_messages" VALUES(7,'s1','{"role": "user", "content": "q2b"}','2026-11-28 21:34:26');
INSERT INTO "agent_messages" VALUES(8,'s1','{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a2b", "annotations": []}]}','2026-11-28 21:34:26');
CREATE TABLE agent_sessions (
                session_id TEXT PRIMARY KEY,
                created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
                updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
            );
INSERT INTO "agent_sessions" VALUES('s1','2026-11-28 21:34:25','2026-11-28 21:34:26');
CREATE TABLE message_structure (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                session_id TEXT NOT NULL,
                message_id INTEGER NOT NULL,
                branch_id TEXT NOT NULL DEFAULT 'main',
                message_type TEXT NOT NULL,
                sequence_number INTEGER NOT NULL,
                user_turn_number INTEGER,
                branch_turn_number INTEGER,
                tool_name TEXT,
                created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
                FOREIGN KEY (session_id)
                    REFERENCES agent_sessions(session_id) ON DELETE CASCADE,
                FOREIGN KEY (message_id)
                    REFERENCES agent_messages(id) ON DELETE CASCADE
            );
INSERT INTO "message_structure" VALUES(1,'s1',1,'main','user',1,1,1,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(2,'s1',2,'main','assistant',2,1,1,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(3,'s1',3,'main','user',3,2,2,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(4,'s1',4,'main','assistant',4,2,2,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(5,'s1',5,'main','user',5,3,3,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(6,'s1',6,'main','assistant',6,3,3,NULL,'2026-11-28 21:34:25');
INSERT INTO "message_structure" VALUES(7,'s1',1,'other_way','user',7,1,1,NULL,'2026-11-28 21:34:26');
INSERT INTO "message_structure" VALUES(8,'s1',2,'other_way','assistant',8,1,1,NULL,'2026-11-28 21:34:26');
INSERT INTO "message_structure" VALUES(9,'s1',7,'other_way','user',9,2,2,NULL,'2026-11-28 21:34:26');
INSERT INTO "message_structure" VALUES(10,'s1',8,'other_way','assistant',10,2,2,NULL,'2026-11-28 21:34:26');
CREATE INDEX idx_agent_messages_session_id
            ON agent_messages (session_id, id)
        ;
CREATE INDEX idx_structure_session_seq
            ON message_structure(session_id, sequence_number)
        ;
CREATE INDEX idx_structure_branch
            ON message_structure(session_id, branch_id)
        ;
CREATE INDEX idx_structure_turn
            ON message_structure(session_id, branch_id, user_turn_number)
        ;
CREATE INDEX idx_structure_branch_seq
            ON message_structure(session_id, branch_id, sequence_number)
        ;
COMMIT;
