<<<<<<< HEAD
//! Drivers: check ownership, load, decide, persist, run effects, reply.
=======
//! Services: ask a machine, persist, then answer.
>>>>>>> machine
