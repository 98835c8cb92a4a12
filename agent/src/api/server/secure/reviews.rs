//! What the API server is asked about a client: who has this token, and may this user get this path.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, UserInfo},
    authorization::v1::SubjectAccessReview,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::{KEY, recent::Recent};
use crate::{
    api::published::Published, config::ReviewTtls, eviction::status::Server, pods::Apiserver,
};

/// Both answers about a request come within this time, or it is refused.
const TIME: Duration = Duration::from_secs(10);

/// Requests about which the API server is asked at the same time.
const AT_ONCE: usize = 4;

/// A token that is not known holds no longer than this, and no longer than a known one: the API server may know it soon.
const UNKNOWN: Duration = Duration::from_secs(10);

/// About a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its user may get the path.
    Allowed,
    /// The API server knows no such token.
    Unknown,
    /// Its user may not.
    Forbidden,
    /// There is no answer.
    Unanswered,
}

/// A token, by its hash: what is kept shows none.
type Token = [u8; 32];

pub(super) struct Reviews {
    server: Option<Server>,
    ttls: ReviewTtls,
    published: Weak<Published>,
    turns: Semaphore,
    kept: Mutex<Kept>,
}

/// Recent answers.
#[derive(Default)]
struct Kept {
    /// `None` for a token that is not known.
    users: Recent<Token, Option<Arc<UserInfo>>>,
    /// With the user whose right it is: the same token may be another's, or of other groups, when it is asked about anew.
    rights: Recent<(Token, String), (Arc<UserInfo>, bool)>,
}

impl Kept {
    /// What follows from recent answers alone.
    fn verdict(&self, token: Token, path: &str, now: Instant) -> Option<Verdict> {
        match self.users.get(&token, now)? {
            None => Some(Verdict::Unknown),
            Some(user) => self.right(token, &user, path, now).map(allowed),
        }
    }

    fn right(&self, token: Token, user: &UserInfo, path: &str, now: Instant) -> Option<bool> {
        let (of, may) = self.rights.get(&(token, path.to_owned()), now)?;
        (*of == *user).then_some(may)
    }
}

fn allowed(may: bool) -> Verdict {
    match may {
        true => Verdict::Allowed,
        false => Verdict::Forbidden,
    }
}

impl Reviews {
    pub(super) fn new(
        apiserver: Option<Apiserver>,
        ttls: ReviewTtls,
        published: &Arc<Published>,
    ) -> Self {
        if apiserver.is_none() {
            let problem = "secureListen: there is no API server that reviews tokens, so that only /healthz and /readyz \
                           are answered; give the agent a service account or a kubeconfig";
            published.set_standing(KEY, Some(problem.to_owned()));
        }
        Self {
            server: apiserver.map(Server::new),
            ttls,
            published: Arc::downgrade(published),
            turns: Semaphore::new(AT_ONCE),
            kept: Mutex::default(),
        }
    }

    /// Whether the token's user may get the path.
    pub(super) async fn may_get(&self, token: &str, path: &str) -> Verdict {
        let Some(server) = &self.server else {
            return Verdict::Unanswered;
        };
        let hash = Sha256::digest(token).into();
        if let Some(verdict) = self.kept(|kept| kept.verdict(hash, path, Instant::now())) {
            return verdict;
        }
        let asked = tokio::time::timeout(TIME, async {
            // Never closed.
            let _turn = self.turns.acquire().await;
            self.ask(server, hash, token, path).await
        });
        let asked = asked.await.unwrap_or_else(|_| {
            Err(format!(
                "no answer within {} s about a client",
                TIME.as_secs()
            ))
        });
        let (verdict, problem) = match asked {
            Ok(verdict) => (verdict, None),
            Err(problem) => (
                Verdict::Unanswered,
                Some(format!("secureListen: requests are refused: {problem}")),
            ),
        };
        if let Some(published) = self.published.upgrade() {
            published.set_standing(KEY, problem);
        }
        verdict
    }

    async fn ask(
        &self,
        server: &Server,
        hash: Token,
        token: &str,
        path: &str,
    ) -> Result<Verdict, String> {
        // Another request of the same client may have been answered meanwhile.
        let known = self.kept(|kept| kept.users.get(&hash, Instant::now()));
        let user = match known {
            Some(user) => user,
            None => {
                let user = user(server, token).await?.map(Arc::new);
                let holds = match &user {
                    Some(_) => self.ttls.token,
                    None => self.ttls.token.min(UNKNOWN),
                };
                self.kept(|kept| kept.users.put(hash, user.clone(), holds, Instant::now()));
                user
            }
        };
        let Some(user) = user else {
            return Ok(Verdict::Unknown);
        };
        // A right holds longer than the token's user.
        if let Some(may) = self.kept(|kept| kept.right(hash, &user, path, Instant::now())) {
            return Ok(allowed(may));
        }
        let may = may_get(server, &user, path).await?;
        let key = (hash, path.to_owned());
        let holds = match may {
            true => self.ttls.authorized,
            false => self.ttls.unauthorized,
        };
        self.kept(|kept| kept.rights.put(key, (user, may), holds, Instant::now()));
        Ok(allowed(may))
    }

    fn kept<T>(&self, with: impl FnOnce(&mut Kept) -> T) -> T {
        with(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The user with this token, if there is one.
async fn user(server: &Server, token: &str) -> Result<Option<UserInfo>, String> {
    const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
    });
    let answer: TokenReview = reviewed(server, PATH, &review, "a TokenReview").await?;
    let status = answer.status.unwrap_or_default();
    let user = status.user.filter(|_| status.authenticated == Some(true));
    // A name that is empty would be no subject of any review.
    Ok(user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty())))
}

/// Whether the user may `get` the path.
async fn may_get(server: &Server, user: &UserInfo, path: &str) -> Result<bool, String> {
    const PATH: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        },
    });
    let answer: SubjectAccessReview =
        reviewed(server, PATH, &review, "a SubjectAccessReview").await?;
    let status = answer.status.unwrap_or_default();
    Ok(status.allowed && status.denied != Some(true))
}

async fn reviewed<T: DeserializeOwned>(
    server: &Server,
    path: &str,
    review: &Value,
    asked: &str,
) -> Result<T, String> {
    let answer = server.create(path, review, asked).await;
    let text = answer
        .map_err(|error| error.problem)?
        .map_err(|refusal| refusal.failure(asked).problem)?;
    let broken =
        |error: &dyn Display| format!("the API server's answer to {asked} is none: {error}");
    serde_json::from_slice(&text).map_err(|error| broken(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_outlives_the_review_of_its_users_token_and_is_no_other_users() {
        const TOKEN: Token = [1; 32];
        let user = |groups: &[&str]| {
            Arc::new(UserInfo {
                username: Some("scraper".to_owned()),
                groups: Some(groups.iter().map(|&group| group.to_owned()).collect()),
                ..UserInfo::default()
            })
        };
        let (minute, start) = (Duration::from_secs(60), Instant::now());
        let mut kept = Kept::default();
        let monitoring = user(&["monitoring"]);
        let key = (TOKEN, "/metrics".to_owned());
        kept.users
            .put(TOKEN, Some(Arc::clone(&monitoring)), 2 * minute, start);
        kept.rights
            .put(key, (Arc::clone(&monitoring), true), 5 * minute, start);
        assert_eq!(
            kept.verdict(TOKEN, "/metrics", start),
            Some(Verdict::Allowed)
        );
        assert_eq!(kept.verdict(TOKEN, "/v1/node", start), None);

        // The token is asked about anew, the right is not.
        let later = start + 3 * minute;
        assert_eq!(kept.verdict(TOKEN, "/metrics", later), None);
        assert_eq!(
            kept.right(TOKEN, &monitoring, "/metrics", later),
            Some(true)
        );
        kept.users.put(TOKEN, Some(monitoring), 2 * minute, later);
        assert_eq!(
            kept.verdict(TOKEN, "/metrics", later),
            Some(Verdict::Allowed)
        );

        // The user has left the group that had the right.
        kept.users.put(TOKEN, Some(user(&[])), 2 * minute, later);
        assert_eq!(kept.verdict(TOKEN, "/metrics", later), None);
        kept.users.put(TOKEN, None, minute, later);
        assert_eq!(
            kept.verdict(TOKEN, "/metrics", later),
            Some(Verdict::Unknown)
        );
    }
}
