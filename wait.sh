while read -r line; do
    case $line in
    *'"epoch":'*) epoch=${line#*\"epoch\":} && echo "{\"epoch\":${epoch%%[!0-9]*},\"op\":\"wait\"}" ;;
    *) echo '{"ok":true}' ;;
    esac
done
