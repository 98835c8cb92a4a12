//! Loads and attaches the programs one by one, and notes those that this kernel refuses.

use aya::{
    Btf,
    programs::{BtfTracePoint, FEntry, ProgramError, RawTracePoint, RawTracePointRunOptions},
};
use podwarden_abi::Figure;

use super::{Choices, LoadError, Missing, Programs};
use crate::kernel::{
    hooks::{self, CHARGE, Hook, Member},
    refusal::refusal,
};

impl Programs {
    /// Notes the figures whose members this kernel lacks.
    pub(super) fn lose_figures(&mut self, lacking: &[Member]) {
        for (figure, why) in hooks::lost_figures(lacking) {
            if let (part, Some(lost)) = hooks::figure(figure) {
                self.miss(part, lost, why);
            }
        }
    }

    pub(super) fn load_all(
        &mut self,
        choices: Choices,
        aya_btf: &Btf,
        fentry: bool,
    ) -> Result<(), LoadError> {
        self.load_flush()?;
        for (first, choice) in choices {
            match (choice, first.lost_without) {
                (Ok(hook), _) => self.load_tracepoint(hook, aya_btf)?,
                (Err(why), Some(lost)) => self.miss(first.tracepoint, lost, why),
                (Err(why), None) => {
                    let name = first.tracepoint;
                    return Err(LoadError::Tracepoint { name, why });
                }
            }
        }
        let levels = hooks::figure(Figure::Levels).0;
        let refused = if !fentry {
            Some("switched off".to_owned())
        } else if self.missing.iter().any(|missing| missing.part == levels) {
            Some("it lacks structure members".to_owned())
        } else {
            self.load_charge(aya_btf).err()
        };
        self.miss_charge(refused);
        Ok(())
    }

    pub(super) fn attach_all(&mut self) -> Result<(), LoadError> {
        for hook in std::mem::take(&mut self.loaded) {
            self.attach_tracepoint(hook)?;
        }
        if self.has_charge_hook() {
            let refused = self.attach_charge().err();
            self.miss_charge(refused);
        }
        Ok(())
    }

    fn miss_charge(&mut self, refused: Option<String>) {
        if let (Some(why), Some(lost)) = (refused, CHARGE.lost_without) {
            self.miss(CHARGE.tracepoint, lost, why);
        }
    }

    fn load_flush(&mut self) -> Result<(), LoadError> {
        self.flush_program()?
            .load()
            .map_err(|e| LoadError::Program {
                name: "flush",
                source: Box::new(e),
            })
    }

    fn flush_program(&mut self) -> Result<&mut RawTracePoint, LoadError> {
        self.ebpf
            .program_mut("flush")
            .and_then(|p| p.try_into().ok())
            .ok_or(LoadError::Missing("flush"))
    }

    /// Loads one tracepoint program; a failure is fatal where nothing works without it.
    fn load_tracepoint(&mut self, hook: &'static Hook, btf: &Btf) -> Result<(), LoadError> {
        let loaded = self.tracepoint(hook)?.load(hook.tracepoint, btf);
        if self.is_done(hook, loaded)? {
            self.loaded.push(hook);
        }
        Ok(())
    }

    fn attach_tracepoint(&mut self, hook: &'static Hook) -> Result<(), LoadError> {
        let attached = self.tracepoint(hook)?.attach();
        if self.is_done(hook, attached.map(drop))? {
            self.figures.extend(hook.figure);
        }
        Ok(())
    }

    fn tracepoint(&mut self, hook: &Hook) -> Result<&mut BtfTracePoint, LoadError> {
        let name = hook.program;
        self.ebpf
            .program_mut(name)
            .and_then(|p| p.try_into().ok())
            .ok_or(LoadError::Missing(name))
    }

    /// False where the kernel refused what can be done without.
    fn is_done(
        &mut self,
        hook: &'static Hook,
        done: Result<(), ProgramError>,
    ) -> Result<bool, LoadError> {
        match (done, hook.lost_without) {
            (Ok(()), _) => return Ok(true),
            (Err(e), Some(lost)) => self.miss(hook.tracepoint, lost, refusal(&e)),
            (Err(e), None) => {
                let (name, source) = (hook.program, Box::new(e));
                return Err(LoadError::Program { name, source });
            }
        }
        Ok(false)
    }

    fn load_charge(&mut self, btf: &Btf) -> Result<(), String> {
        let loaded = self.charge()?.load(CHARGE.tracepoint, btf);
        loaded.map_err(|e| refusal(&e))
    }

    fn attach_charge(&mut self) -> Result<(), String> {
        let attached = self.charge()?.attach();
        attached.map(drop).map_err(|e| refusal(&e))
    }

    fn charge(&mut self) -> Result<&mut FEntry, String> {
        let program = self.ebpf.program_mut(CHARGE.program).map(TryInto::try_into);
        match program {
            Some(Ok(program)) => Ok(program),
            _ => Err("not in the object".to_owned()),
        }
    }

    pub(super) fn miss(&mut self, part: &'static str, lost: &'static str, why: String) {
        tracing::debug!(part, lost, why, "kernel hook not available");
        self.missing.push(Missing { part, lost, why });
    }

    /// True when the figure's own program is attached.
    pub fn counts(&self, figure: Figure) -> bool {
        self.figures.contains(&figure)
    }

    /// True when levels are checked at the charge itself; before the programs are attached, when they can be.
    pub fn has_charge_hook(&self) -> bool {
        self.missing.iter().all(|m| m.part != CHARGE.tracepoint)
    }

    /// Accounts what runs on `cpu` up to the kernel's last tick (an interrupt on that CPU). `ENXIO` for a CPU that is
    /// offline.
    pub fn flush(&mut self, cpu: u32) -> Result<(), ProgramError> {
        use aya::programs::TestRun as _;
        let Ok(program) = self.flush_program() else {
            return Ok(());
        };
        let mut options = RawTracePointRunOptions::new();
        options.cpu = Some(cpu);
        program.test_run(options).map(|_| ())
    }
}
