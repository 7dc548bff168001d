//! Block-fingerprint kernels, one file per instruction set, each equal to [`portable`] bit for bit.
//!
//! A kernel hashes many blocks per call, because one block of 16 tokens is about 1 ns of work: a call, and the sum across the lanes of one
//! vector, would cost as much again. `unsafe` stands in the files of the instruction sets and nowhere else: a file hands out its kernel only
//! after it has asked the CPU, so that whoever holds a [`Kernel`] may run it.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector loads and stores, and functions that need a CPU feature")]
mod avx2;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
#[allow(unsafe_code, reason = "vector loads and stores, and functions that need a CPU feature")]
mod neon;
pub mod portable;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vector loads and stores, and functions that need a CPU feature")]
mod sse2;

/// One way to fingerprint blocks that this machine can run.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    run: fn(tokens: &[u32], key: &[u32], out: &mut [u64]),
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

impl Kernel {
    /// The fastest kernel of this machine.
    #[must_use]
    pub fn detect() -> Self {
        vectorised().next().unwrap_or(portable::KERNEL)
    }

    /// Every kernel this machine can run, the fastest first and the portable one last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vectorised().chain([portable::KERNEL]).collect()
    }

    /// Name of the instruction set.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the fingerprint of every block of `key.len()` tokens, first block first.
    ///
    /// # Panics
    /// Unless `tokens` holds exactly `out.len()` blocks of `key.len() > 0` tokens.
    pub fn blocks(&self, tokens: &[u32], key: &[u32], out: &mut [u64]) {
        assert!(!key.is_empty(), "a block has at least one token");
        assert_eq!(Some(tokens.len()), out.len().checked_mul(key.len()), "tokens fill the blocks exactly");
        (self.run)(tokens, key, out);
    }
}

/// The vector kernels this machine can run, the fastest first.
fn vectorised() -> impl Iterator<Item = Kernel> {
    #[cfg(target_arch = "x86_64")]
    let kernels = [avx2::kernel(), sse2::kernel()];
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    let kernels = [neon::kernel()];
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
    let kernels: [Option<Kernel>; 0] = [];
    kernels.into_iter().flatten()
}
