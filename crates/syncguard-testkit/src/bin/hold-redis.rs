//! Starts a Redis server, prints its port, and holds it until standard input ends: a parent for
//! the tests to kill.

fn main() -> anyhow::Result<()> {
    let server = syncguard_testkit::RedisServer::start()?;
    println!("{}", server.port());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
