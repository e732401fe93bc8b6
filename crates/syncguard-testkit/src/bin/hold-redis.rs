//! Starts a Redis server, prints its port, and keeps it until standard input ends. The tests kill this
//! process.

fn main() -> anyhow::Result<()> {
    let server = syncguard_testkit::RedisServer::start()?;
    println!("{}", server.port());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
