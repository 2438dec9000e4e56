#[tokio::main]
async fn main() -> std::process::ExitCode {
    match stowage_runtime::flags::parse::<stowage::args::Args>().run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("stowage: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
