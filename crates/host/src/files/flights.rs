//! The pins of chains that start together: BPF-oF's algorithms 1 and 2, run once for all of them.

use super::file::{Pin, PushdownFile};

/// The pinned files of some chains of one call, from their start to their end.
#[derive(Debug, Default)]
struct Flight {
    pins: Vec<Pin>,
    /// How often the keeper had examined each file of the call before the pins.
    looks: Vec<u64>,
    /// Number of chains that have not left the flight.
    chains: usize,
    /// The cached result of `verify`: whether no file has changed.
    good: Option<bool>,
}

/// The number of a flight.
pub(crate) type FlightId = usize;

/// Flights by their numbers. One completion ends all chains of a flight.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    flights: Vec<Flight>,
    free: Vec<FlightId>,
}

impl Flights {
    /// BPF-oF's algorithm 1: pins all files that need maps, for one chain.
    ///
    /// # Errors
    /// A file has no map; a new one is requested. Returns how often the keeper had examined each
    /// file before.
    pub(crate) fn begin(&mut self, files: &[PushdownFile]) -> Result<FlightId, Vec<u64>> {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() - 1
        });
        let flight = &mut self.flights[id];
        flight.chains = 1;
        flight.looks.clear();
        flight.looks.extend(files.iter().map(PushdownFile::looks));
        let mapped = || files.iter().filter(|file| !file.is_whole_namespace());
        // All files, so that each file without a map requests one.
        let mut may_wait = true;
        flight.pins.extend(mapped().filter_map(|file| file.begin(&mut may_wait)));
        if flight.pins.len() == mapped().count() {
            return Ok(id);
        }
        let looks = flight.looks.clone();
        self.leave(id);
        Err(looks)
    }

    /// Sets the number of chains that have started.
    pub(crate) fn started(&mut self, id: FlightId, chains: usize) {
        self.flights[id].chains = chains;
    }

    pub(crate) fn pins(&self, id: FlightId) -> &[Pin] {
        &self.flights[id].pins
    }

    /// How often the keeper had examined each file of the call before the pins.
    pub(crate) fn looks(&self, id: FlightId) -> &[u64] {
        &self.flights[id].looks
    }

    /// Marks the maps as wrong: the executor has other maps, or none.
    pub(crate) fn distrust(&self, id: FlightId) {
        self.flights[id].pins.iter().for_each(Pin::distrust);
    }

    pub(crate) fn has_gaps(&self, id: FlightId) -> bool {
        self.flights[id].pins.iter().any(Pin::has_gaps)
    }

    /// BPF-oF's algorithm 2: whether no file has changed. Called after the chains have ended.
    pub(crate) fn verify(&mut self, id: FlightId) -> bool {
        let Flight { pins, good, .. } = &mut self.flights[id];
        // All pins, so that each changed file requests a new map.
        *good.get_or_insert_with(|| pins.iter().filter(|pin| !pin.verify()).count() == 0)
    }

    /// Whether a file has grown beyond its map, which is valid nevertheless.
    pub(crate) fn has_grown(&self, id: FlightId) -> bool {
        self.flights[id].pins.iter().filter(|pin| pin.has_grown()).count() > 0
    }

    /// A chain has ended, or will start again. The last one releases the pins.
    pub(crate) fn leave(&mut self, id: FlightId) {
        let flight = &mut self.flights[id];
        flight.chains -= 1;
        if flight.chains == 0 {
            flight.pins.clear();
            flight.good = None;
            self.free.push(id);
        }
    }
}
