// A session as Python sees it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "decoding/session.h"
#include "drafting/growth_drafter.h"

namespace medusa {

class SessionBinding {
  public:
    // growth: the part of the session that grows its trees, where there is one.
    explicit SessionBinding(std::unique_ptr<Session> session, const GrowthDrafter* growth = nullptr)
        : session_(std::move(session)), growth_(growth) {}

    Session& session() { return *session_; }
    const GrowthDrafter* growth() const { return growth_; }
    // Runs with the GIL released. A Python exception in `on_step` or a pending signal ends the run and is raised.
    Generation generate(const std::vector<Token>& prompt, const GenerateParams& params, const nb::object& on_step);

  private:
    std::unique_ptr<Session> session_;
    const GrowthDrafter* growth_;
    std::atomic<bool> busy_ = false;
};

}  // namespace medusa
