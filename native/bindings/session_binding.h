// A session as Python sees it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "compose/compose.h"
#include "decoding/session.h"

namespace medusa {

// For one answer or several: from any thread, before it begins or while it is being written.
class Cancellation {
  public:
    void cancel() { requested_ = true; }
    bool requested() const { return requested_; }

  private:
    std::atomic<bool> requested_ = false;
};

class SessionBinding {
  public:
    explicit SessionBinding(ComposedSession composed)
        : session_(std::move(composed.session)), dynamic_(composed.dynamic) {}

    // For what does not change while it generates.
    const Session& session() const { return *session_; }
    // The whole session. Throws Error while it generates on another thread, or on this one (from on_step).
    Session& idle_session() const {
        if (busy_) throw Error("this session is generating: wait for it");
        return *session_;
    }
    const DynamicTreeDrafter* dynamic() const { return dynamic_; }
    // Calls `use` with the session and without the GIL; nothing else may use the session meanwhile.
    template <typename Use>
    void while_idle(Use&& use) {
        const Busy busy(busy_);
        const nb::gil_scoped_release released;
        use(*session_);
    }
    // Runs with the GIL released. A Python exception in `on_step` or, on the main thread, a pending signal ends the run
    // and is raised.
    Generation generate(const std::vector<Token>& prompt, const GenerateParams& params,
                        const std::shared_ptr<const Cancellation>& cancellation, const nb::object& on_step,
                        const nb::object& on_prompt);

  private:
    struct Busy {
        explicit Busy(std::atomic<bool>& flag) : flag_(flag) {
            if (flag.exchange(true)) throw Error("this session is already generating: wait for it or open another");
        }
        ~Busy() { flag_ = false; }
        std::atomic<bool>& flag_;
    };

    std::unique_ptr<Session> session_;
    const DynamicTreeDrafter* dynamic_;
    std::atomic<bool> busy_ = false;
};

}  // namespace medusa
