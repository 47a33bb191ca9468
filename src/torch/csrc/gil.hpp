// Python's lock, for waits in functions that torch calls with it.
#pragma once

#include <Python.h>

namespace rendez_torch {

// Whether callbacks that want the lock may never get it.
inline bool python_ends() {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsInitialized() == 0 || Py_IsFinalizing();
#else
    return Py_IsInitialized() == 0 || _Py_IsFinalizing();
#endif
}

// Gives the lock back as long as it lives, if this thread has it: who is waited for may need it.
class WithoutGil {
public:
    WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;
    // Python ends threads that want its lock while it ends itself.
    ~WithoutGil() noexcept(false) {
        if (saved_ != nullptr) {
            PyEval_RestoreThread(saved_);
        }
    }

private:
    PyThreadState *const saved_;
};

} // namespace rendez_torch
