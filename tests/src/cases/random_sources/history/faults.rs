//! Servers are unpleasant or away, and agents end.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::History;
use crate::apiserver::{Outage, Refusal};
use crate::harness::{Agent, sleep};

impl History<'_> {
    /// Watches are cut, and events told late and twice, in another way from now on.
    pub(super) fn be_unpleasant(&mut self) {
        let cut_after = self.rng().u32(30..200);
        let repeat = self.rng().bool();
        let late = Duration::from_micros(self.rng().u64(0..1500));
        self.server().manners(|m| {
            m.cut_after = Some(cut_after);
            (m.repeat, m.late) = (repeat, late);
            m.bookmarks = Duration::from_millis(50);
        });
    }

    /// Something goes wrong.
    pub(super) fn fault(&mut self) -> Result<()> {
        match self.dice() {
            0..35 => self.be_unpleasant(),
            35..60 => {
                // Cut off, and the history is gone by the time it is back.
                self.world.server.stop();
                self.server().compact();
                self.world.server.resume()?;
            }
            60..70 => self.server().compact(),
            70..85 => {
                let refusals = [
                    Refusal::new(500, "InternalError", "later"),
                    Refusal::new(504, "Timeout", "Timeout: Too large resource version: 9"),
                    Refusal {
                        retry_after: Some(1),
                        ..Refusal::new(429, "TooManyRequests", "later")
                    },
                ];
                let refusal = refusals[self.rng().usize(..refusals.len())].clone();
                self.server().manners(|m| m.refuse.push_back(refusal));
                self.world.server.stop();
                self.world.server.resume()?;
            }
            _ => {
                let way = Outage::ALL[self.rng().usize(..Outage::ALL.len())];
                self.world.server.go_away(way)?;
                let pause = self.rng().u64(50..400);
                sleep(Duration::from_millis(pause))?;
                self.world.server.come_back()?;
            }
        }
        Ok(())
    }

    /// The agent ends, one way or another, and the next one is started, and may not have the time to become
    /// ready.
    pub(super) fn restart(&mut self) -> Result<()> {
        let limit = self.context.limit(20);
        let dice = self.dice();
        let node = &mut self.world.node;
        node.agent.signal(match dice % 2 {
            0 => Signal::SIGKILL,
            _ => Signal::SIGTERM,
        })?;
        node.agent.wait(limit)?;
        node.agent = Agent::spawn(self.context.agent(), &node.sandbox, &self.world.options)?;
        self.context.watch(&node.agent.log);
        if dice < 70 {
            // It is not before it was told of every page and pod once.
            self.show_page();
            self.world.ready(self.context)?;
        }
        Ok(())
    }
}
