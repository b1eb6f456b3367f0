//! A peer: all-reduce over a ring of TCP connections. docs/measure/collectives.md describes its inputs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;
use std::{env, fs, process, thread};

/// The rank of a peer that is gone, or was silent for too long.
struct Lost(usize);

struct Ring {
    rank: usize,
    world: usize,
    right: TcpStream,
    left: TcpStream,
}

impl Ring {
    /// Connect to the right neighbour, and accept the connection of the left one.
    fn connect(rank: usize, world: usize, timeout: Duration) -> std::io::Result<Ring> {
        let addresses = variable("PEER_ADDRESSES");
        let addresses: Vec<&str> = addresses.split(',').collect();
        let listener = TcpListener::bind(addresses[rank])?;
        let right = TcpStream::connect(addresses[(rank + 1) % world])?;
        let (left, _) = listener.accept()?;
        right.set_nodelay(true)?;
        right.set_write_timeout(Some(timeout))?;
        left.set_read_timeout(Some(timeout))?;
        Ok(Ring { rank, world, right, left })
    }

    /// Send to the right and fill `come` from the left concurrently, so that neither side blocks the other.
    fn exchange(&self, out: &[u8], come: &mut [u8]) -> Result<(), Lost> {
        let (mut right, mut left) = (&self.right, &self.left);
        let (sent, got) = thread::scope(|scope| {
            let sending = scope.spawn(move || right.write_all(out));
            let got = left.read_exact(come);
            (sending.join().expect("the sending thread does not panic"), got)
        });
        got.map_err(|_| Lost((self.rank + self.world - 1) % self.world))?;
        sent.map_err(|_| Lost((self.rank + 1) % self.world))
    }

    /// Replace `data` with its sum over all ranks: reduce-scatter, then all-gather, n - 1 steps each.
    fn all_reduce(&self, data: &mut [u8], kind: u64) -> Result<(), Lost> {
        let size = if kind % 2 == 1 { 4 } else { 8 };
        let (n, count) = (self.world, data.len() / size);
        let part = |i: usize| -> Range<usize> { i % n * count / n * size..(i % n + 1) * count / n * size };
        for step in 0..2 * (n - 1) {
            let (give, take) = (part(self.rank + 2 * n - step), part(self.rank + 2 * n - step - 1));
            let mut come = vec![0; take.len()];
            self.exchange(&data[give], &mut come)?;
            if step < n - 1 {
                add(kind, &mut data[take], &come);
            } else {
                data[take].copy_from_slice(&come);
            }
        }
        Ok(())
    }
}

macro_rules! add_as {
    ($number:ty, $mine:expr, $theirs:expr) => {{
        const SIZE: usize = std::mem::size_of::<$number>();
        for (mine, theirs) in $mine.chunks_exact_mut(SIZE).zip($theirs.chunks_exact(SIZE)) {
            let read = |bytes: &[u8]| <$number>::from_le_bytes(bytes.try_into().unwrap());
            let sum = read(mine) + read(theirs);
            mine.copy_from_slice(&sum.to_le_bytes());
        }
    }};
}

/// Add numbers of the header's dtype, element by element.
fn add(kind: u64, mine: &mut [u8], theirs: &[u8]) {
    match kind {
        1 => add_as!(f32, mine, theirs),
        2 => add_as!(f64, mine, theirs),
        3 => add_as!(i32, mine, theirs),
        _ => add_as!(i64, mine, theirs),
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: frog collectives check sets it"))
}

fn main() -> std::io::Result<()> {
    let timeout = Duration::from_secs_f64(variable("PEER_TIMEOUT_S").parse().expect("a number"));
    let number = |name| variable(name).parse::<usize>().expect("a number");
    let ring = Ring::connect(number("PEER_RANK"), number("PEER_WORLD"), timeout)?;
    for line in fs::read_to_string(variable("PEER_CALLS"))?.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let (operation, source, target) = (words[0], words[2], words[3]);
        if operation != "all_reduce" {
            process::exit(3);
        }
        let mut file = fs::read(source)?;
        let kind = u64::from_le_bytes(file[8..16].try_into().unwrap());
        if let Err(Lost(rank)) = ring.all_reduce(&mut file[24..], kind) {
            eprintln!("lost {rank}");
            process::exit(1);
        }
        let staging = format!("{target}.part");
        fs::File::create(&staging)?.write_all(&file)?;
        fs::rename(&staging, target)?;
    }
    Ok(())
}
