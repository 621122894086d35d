//! The queue for the slot: turns of several sessions take it in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::proto::SessionId;

/// The slot's queue; its front has the slot.
#[derive(Debug, Default)]
pub struct SlotQueue {
    tickets: RefCell<VecDeque<(u64, Option<SessionId>)>>,
    next: Cell<u64>,
    moved: Notify,
}

/// A place in the queue. Dropping it gives the place, or the slot, up.
#[derive(Debug)]
pub struct Ticket {
    queue: Rc<SlotQueue>,
    number: u64,
}

impl SlotQueue {
    /// Takes the last place, for a session or for what is no turn.
    pub fn join(self: &Rc<Self>, session: Option<SessionId>) -> Ticket {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        self.tickets.borrow_mut().push_back((number, session));
        Ticket { queue: Rc::clone(self), number }
    }

    /// Who has the slot.
    pub fn holder(&self) -> Option<SessionId> {
        self.tickets.borrow().front().and_then(|(_, session)| session.clone())
    }

    /// Whether nobody has the slot.
    pub fn is_empty(&self) -> bool {
        self.tickets.borrow().is_empty()
    }

    /// How many wait behind the holder.
    pub fn waiting(&self) -> usize {
        self.tickets.borrow().len().saturating_sub(1)
    }
}

impl Ticket {
    /// How many turns are ahead; 0 has the slot.
    pub fn place(&self) -> usize {
        let tickets = self.queue.tickets.borrow();
        tickets.iter().position(|(number, _)| *number == self.number).unwrap_or(0)
    }

    /// Waits for the slot; calls `on_wait` with each new place.
    pub async fn granted(&self, mut on_wait: impl FnMut(usize)) {
        let mut told = 0;
        loop {
            let moved = self.queue.moved.notified();
            let place = self.place();
            if place == 0 {
                return;
            }
            if place != told {
                told = place;
                on_wait(place);
            }
            moved.await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.tickets.borrow_mut().retain(|(number, _)| *number != self.number);
        self.queue.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn turns_take_the_slot_in_order_and_a_dropped_place_is_given_up() {
        let queue = Rc::new(SlotQueue::default());
        let id = |text: &str| Some(text.parse::<SessionId>().unwrap());
        let a = queue.join(id("a"));
        let b = queue.join(id("b"));
        let c = queue.join(id("c"));
        assert_eq!((a.place(), b.place(), c.place(), queue.waiting()), (0, 1, 2, 2));
        drop(b);
        assert_eq!(c.place(), 1);
        let mut places = Vec::new();
        let freed = async {
            tokio::task::yield_now().await;
            drop(a);
        };
        tokio::join!(c.granted(|place| places.push(place)), freed);
        assert_eq!(places, [1]);
        assert_eq!(queue.holder(), id("c"));
    }
}
