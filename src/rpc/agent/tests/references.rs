//! References between agents.

use super::*;
