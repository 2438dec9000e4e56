use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut words = std::env::args_os();
    match words.nth(1) {
        Some(word) if word == "healthcheck" => {
            apiserver::Healthcheck::parse_from(std::iter::once(word).chain(words)).run().await
        }
        _ => apiserver::Args::parse().run().await,
    }
}
