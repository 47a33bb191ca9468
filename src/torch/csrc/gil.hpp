// Python's lock, for waits in functions that torch calls with it.
#pragma once

#include <Python.h>

namespace rendez_torch {

// Gives the lock back as long as it lives, if this thread has it: who is waited for may need it.
class WithoutGil {
public:
    WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;
    ~WithoutGil() {
        if (saved_ != nullptr) {
            PyEval_RestoreThread(saved_);
        }
    }

private:
    PyThreadState *const saved_;
};

} // namespace rendez_torch
