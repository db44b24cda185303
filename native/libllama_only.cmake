# For building llama-cpp-python: of llama.cpp its library alone, without the helpers of its command line tools, which
# take two thirds of the time and which nothing here uses. Its own build script sets the cache variable, which a plain
# variable hides. (CMAKE_ARGS="-DCMAKE_PROJECT_INCLUDE=this file -DLLAVA_BUILD=OFF")
set(LLAMA_BUILD_COMMON OFF)
