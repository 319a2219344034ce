use std::{thread::sleep, time::Duration};

use redis::{Client, RedisResult, cmd};

/// Adds one to the number of reports, under the lock "report". `token` is of this attempt.
fn add_report(client: &Client, token: &str) -> RedisResult<()> {
    let mut connection = client.get_connection()?;
    let mut lock = cmd("LOCK");
    lock.arg(&["report", token, "PX", "30000", "WAIT", "30000"]);
    loop {
        // The connection waits for ever for a reply, so WAIT may be long.
        match lock.query::<Option<(String, u64, u64)>>(&mut connection) {
            Ok(Some(_)) => break,
            Ok(None) => {}
            Err(error) if error.code() == Some("NOQUORUM") => sleep(Duration::from_secs(1)),
            Err(error) => return Err(error),
        }
    }
    let done = count_on(&mut connection);
    let _: RedisResult<u64> = cmd("UNLOCK").arg(&["report", token]).query(&mut connection);
    done
}

fn count_on(connection: &mut redis::Connection) -> RedisResult<()> {
    let reports: Option<u64> = cmd("GET").arg("reports").query(connection)?;
    cmd("SET").arg("reports").arg(reports.unwrap_or(0) + 1).exec(connection)
}
