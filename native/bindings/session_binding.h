// A session as Python sees it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "session.h"

namespace medusa {

class SessionBinding {
  public:
    explicit SessionBinding(std::unique_ptr<Session> session) : session_(std::move(session)) {}

    Session& session() { return *session_; }
    // Runs with the GIL released. A Python exception in `on_step` or a pending signal ends the run and is raised.
    Generation generate(const std::vector<Token>& prompt, const GenerateParams& params, const nb::object& on_step);

  private:
    std::unique_ptr<Session> session_;
    std::atomic<bool> busy_ = false;
};

}  // namespace medusa
