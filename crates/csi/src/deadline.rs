//! How long one call may take.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status};

/// The time one call may take, told to the driver and enforced here whether or not the driver obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub Duration);

impl Deadline {
    /// Makes the call and ends it with `DeadlineExceeded` once the time is up; the driver may well go on.
    /// As in `deadline.call(request, |r| client.create_volume(r))`.
    pub async fn call<T, R, F>(self, message: T, call: impl FnOnce(Request<T>) -> F) -> Result<R, Status>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        match timeout(self.0, call(self.request(message))).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer from the driver within {:?}", self.0))),
        }
    }

    /// A request that carries this time as its `grpc-timeout`, for callers that keep time themselves.
    pub fn request<T>(self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.0);
        request
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_driver_costs_exactly_the_deadline() {
        let begin = Instant::now();
        let error = Deadline(Duration::from_secs(15))
            .call((), |_| std::future::pending::<Result<Response<()>, Status>>())
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(error.message(), "no answer from the driver within 15s");
        assert_eq!(begin.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn the_driver_is_told_how_long_we_wait() {
        let seen = Deadline(Duration::from_millis(1500))
            .call((), async |request: Request<()>| Ok(Response::new(request.metadata().get("grpc-timeout").cloned())))
            .await
            .unwrap();
        assert_eq!(seen.unwrap(), "1500000u");
    }
}
