//! Tests of this file's neighbour.
