//! What only the memory backend does. The suite runs on it in `syncguard-conformance`.

mod clock;
