#include "growth_drafter.h"

namespace medusa {

GrowthDrafter::GrowthDrafter(std::unique_ptr<LevelSource> source, const GrowthParams& params, const GrowthStart& start)
    : source_(std::move(source)),
      calibration_(source_->depth(), start.calibration),
      cost_(start.curve, start.learns_cost),
      growth_(source_->depth(), params) {}

void GrowthDrafter::begin(std::span<const Token> prompt) {
    growth_.forget();
    known_ = 0;
}

void GrowthDrafter::draft(const DraftInput& input, const Tree& shape, Draft& out) {
    const Stopwatch watch;
    if (known_ > 0) {
        const auto came = input.context.subspan(known_);
        cost_.record_step(step_ms_, static_cast<int>(came.size()));
        growth_.learn(came, calibration_);
    }
    known_ = input.context.size();
    if (shape.size() == 1) {
        out.tree = &shape;
    } else {
        source_->begin(input);
        growth_.grow(*source_, input.context.back(), input.room, calibration_, cost_, out);
    }
    draft_ms_ = watch.elapsed_ms();
}

void GrowthDrafter::verified(const Tree& tree, double ms) {
    cost_.record({tree.size(), tree.leaf_count()}, ms);
    step_ms_ = draft_ms_ + ms;
}

}  // namespace medusa
