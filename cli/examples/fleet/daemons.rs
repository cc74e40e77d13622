//! The daemon with the status page, and a second one at times.

use std::path::PathBuf;

use crate::Result;
use crate::daemon::Daemon;
use crate::site::Site;

pub struct Daemons {
    program: PathBuf,
    config: PathBuf,
    config_of_second: PathBuf,
    /// `None` after a failed restart and after `stop`.
    first: Option<Daemon>,
    second: Option<Daemon>,
}

impl Daemons {
    /// Starts the first daemon, and returns when it listens.
    pub async fn start(program: PathBuf, site: &Site) -> Result<Self> {
        let config = site.configure("first", &site.listen.to_string())?;
        let config_of_second = site.configure("second", "off")?;
        let mut daemons = Daemons {
            program,
            config,
            config_of_second,
            first: None,
            second: None,
        };
        daemons.start_first().await?;
        Ok(daemons)
    }

    /// Kills the first daemon and restarts it at the same address.
    pub async fn replace_first(&mut self) -> Result<()> {
        if let Some(first) = self.first.take() {
            first.kill().await?;
        }
        self.start_first().await
    }

    pub fn start_second(&mut self) -> Result<()> {
        self.second = Some(Daemon::start(&self.program, &self.config_of_second)?);
        Ok(())
    }

    pub async fn kill_second(&mut self) -> Result<()> {
        match self.second.take() {
            Some(second) => second.kill().await,
            None => Ok(()),
        }
    }

    /// Stops the running daemons as an operator would.
    pub async fn stop(&mut self) -> Result<()> {
        for daemon in [self.first.take(), self.second.take()]
            .into_iter()
            .flatten()
        {
            daemon.terminate().await?;
        }
        Ok(())
    }

    async fn start_first(&mut self) -> Result<()> {
        let first = self
            .first
            .insert(Daemon::start(&self.program, &self.config)?);
        first.listens().await
    }
}
