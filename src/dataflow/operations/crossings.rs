//! What cutting a graph makes: values sent to another task and received there, arguments and results of a part.
//!
//! No kernels: the executor does what these say.

use super::row::{Row, row};
use crate::graph::Role;
use crate::graph::infer::{nothing, unknown};

const SENDING: &str = "T: type; tensor_name: string; send_device: string; send_device_incarnation: int = 0; \
                       recv_device: string; client_terminated: bool = false";
const RECEIVING: &str = "tensor_type: type; tensor_name: string; send_device: string; \
                         send_device_incarnation: int = 0; recv_device: string; client_terminated: bool = false";
const PLACE: &str = "T: type; index: int >= 0";

pub(super) const ROWS: &[Row] = &[
    row("_Send", "tensor: T ->", SENDING, nothing)
        .stateful()
        .role(Role::Send),
    row("_Recv", "-> tensor: tensor_type", RECEIVING, unknown)
        .stateful()
        .role(Role::Recv),
    row("_Arg", "-> output: T", PLACE, unknown)
        .role(Role::Arg)
        .stateful(),
    row("_Retval", "input: T ->", PLACE, nothing)
        .role(Role::Retval)
        .stateful(),
];
