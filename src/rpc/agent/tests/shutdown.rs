//! Leaving.

use super::*;
