# The descriptions of machines in hardware/*.json: built into the server as the array of
# server/catalog.h, and installed for people to copy. Run with -P it writes the array.
if(CMAKE_SCRIPT_MODE_FILE)
  set(rows)
  set(arrays)
  set(index 0)
  foreach(file IN LISTS INPUT)
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(REPEAT "." 80 line)
    string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
    string(APPEND arrays "static const char file_${index}[] = {\n${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", file_${index}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  file(WRITE ${OUTPUT} "#include \"server/catalog.h\"\n\n${arrays}\n"
    "const struct mf_catalog_entry mf_catalog_entries[] = {\n${rows}};\n"
    "const size_t mf_catalog_count = ${index};\n")
  return()
endif()

file(GLOB catalog_files CONFIGURE_DEPENDS hardware/*.json)
set(catalog_source ${CMAKE_BINARY_DIR}/generated/catalog.c)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
add_custom_command(OUTPUT ${catalog_source}
  COMMAND ${CMAKE_COMMAND} "-DINPUT=${catalog_files}" -DOUTPUT=${catalog_source}
    -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${catalog_files} ${CMAKE_CURRENT_LIST_FILE} VERBATIM)
target_sources(mf_server PRIVATE ${catalog_source})
install(FILES ${catalog_files} hardware/README.md DESTINATION share/memferry/hardware)
