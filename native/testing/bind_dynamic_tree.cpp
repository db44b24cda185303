#include <map>

#include "drafting/dynamic_tree.h"
#include "testing/module.h"

namespace medusa::testing {
namespace {

using Guesses = std::vector<std::pair<Token, float>>;
using Table = std::map<std::vector<Token>, Guesses>;
using PythonTable = nb::typed<nb::mapping, nb::typed<nb::tuple, Token, nb::ellipsis>, Guesses>;

// Heads that answer from a table, by the path from the root; elsewhere with tokens that have no chance.
class TableLevels final : public LevelSource {
  public:
    TableLevels(Table table, int depth) : table_(std::move(table)), depth_(depth) {}

    DrafterNeeds needs() const override { return {}; }
    int depth() const override { return depth_; }
    void begin(const DraftInput&) override {}
    void level(int depth, std::span<const Token> paths, int ranks, LevelDrafts& out) override {
        out = {ranks, {}, {}};
        const size_t rows = paths.size() / depth;
        asked.push_back(static_cast<int>(rows));
        for (size_t row = 0; row < rows; ++row) {
            const auto path = paths.subspan(row * depth, depth);
            const auto found = table_.find({path.begin(), path.end()});
            for (int rank = 0; rank < ranks; ++rank) {
                const bool known = found != table_.end() && rank < static_cast<int>(found->second.size());
                out.tokens.push_back(known ? found->second[rank].first : -1 - rank);
                out.q.push_back(known ? found->second[rank].second : 0.0f);
            }
        }
    }

    std::vector<int> asked;  // paths by level

  private:
    Table table_;
    int depth_;
};

class TableTree {
  public:
    TableTree(const PythonTable& table, int depth, int max_nodes, int ranks, int width)
        : levels_(nb::cast<Table>(table), depth), tree_(depth, {max_nodes, ranks, width, ranks}) {}

    std::tuple<std::vector<int>, std::vector<Token>, std::vector<float>, std::vector<int>> grow(
        Token root, int room, const HeadCalibration& calibration, DraftCost& cost,
        const std::vector<std::pair<Token, float>>& chain) {
        levels_.asked.clear();
        Draft draft;
        const Tree shape;
        DraftInput input{{&root, 1}, {}, room, shape};
        std::vector<Guess> guesses;
        for (const auto& [token, q] : chain) guesses.push_back({token, q});
        input.chain = guesses;
        tree_.grow(levels_, input, {calibration, calibration, calibration}, cost, draft);
        return {draft.tree->parents(), draft.tokens, draft.q, levels_.asked};
    }
    void learn(const std::vector<Token>& came, HeadCalibration& calibration) {
        Calibrations calibrations{calibration, calibration, calibration};
        tree_.learn(came, calibrations);
        calibration = calibrations[0];
    }

  private:
    TableLevels levels_;
    DynamicTree tree_;
};

}  // namespace

void bind_dynamic_tree(nb::module_& m) {
    nb::class_<HeadCalibration>(m, "HeadCalibration")
        .def(nb::init<int, const HeadCalibration::Table&>(), "depth"_a, "known"_a = HeadCalibration::Table{})
        .def("record", &HeadCalibration::record, "depth"_a, "q"_a, "came"_a)
        .def("probability", &HeadCalibration::probability, "depth"_a, "q"_a)
        .def_prop_ro("table", &HeadCalibration::table);
    nb::class_<DraftCost>(m, "DraftCost")
        .def(nb::init<std::vector<std::pair<int, double>>, bool>(), "curve"_a, "learns"_a)
        .def(
            "record", [](DraftCost& c, int nodes, int leaves, double ms) { c.record({nodes, leaves}, ms); }, "nodes"_a,
            "leaves"_a, "ms"_a)
        .def(
            "verify_ms", [](const DraftCost& c, int nodes, int leaves) { return c.verify_ms({nodes, leaves}); },
            "nodes"_a, "leaves"_a)
        .def("record_level", &DraftCost::record_level, "depth"_a, "ms"_a)
        .def("record_step", &DraftCost::record_step, "ms"_a, "tokens"_a)
        .def_prop_ro("rate", &DraftCost::rate, "Tokens per millisecond.");
    nb::class_<TableTree>(m, "DynamicTree", "Trees grown from a table: (token, probability) by path from the root.")
        .def(nb::init<const PythonTable&, int, int, int, int>(), "table"_a, "depth"_a, nb::kw_only(),
             "max_nodes"_a = DynamicTreeParams().max_nodes, "ranks"_a = DynamicTreeParams().ranks,
             "width"_a = DynamicTreeParams().width)
        .def("grow", &TableTree::grow, "root"_a, "room"_a, "calibration"_a, "cost"_a,
             "chain"_a = std::vector<std::pair<Token, float>>{},
             "Parents, tokens and probabilities of the nodes, and the paths that each level was asked for.")
        .def("learn", &TableTree::learn, "came"_a, "calibration"_a);
    nb::list sizes;
    for (const int size : dynamic_sizes) sizes.append(size);
    m.attr("DYNAMIC_SIZES") = nb::tuple(sizes);
}

}  // namespace medusa::testing
